"""What is known of input features before training: their halo rows, and the aggregation of sparse ones.

Legend: n owned rows, h halo rows, D features, e entries.
"""

from math import prod

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.halo import halo_of
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Key, Transport

SAMPLE = 4096  # nodes, about, whose aggregated rows tell how many entries all have
DENSE = 3  # a matrix with more than 1 / DENSE of its entries takes less memory, and time, without their positions


def halo_features(graph: RankGraph, transport: Transport, name: str) -> Features:
    """Input rows that other ranks own [h, D], sparse where the input is."""
    if isinstance(graph.rows.x, Tensor):
        return halo_of(graph.rows.route, graph.rows.x, transport, name)
    rows = _halo_rows(_matrix(graph.rows.x), graph, transport, name)
    return _features(rows)


def worth_aggregating(
    graph: RankGraph, halo: Adjacency, matrices: Matrices, nodes: int, transport: Transport, name: str
) -> bool:
    """Whether M X has fewer entries than X and the arcs together: what a step multiplies with W, or M with X W.

    Both are counted over all ranks, M X by a sample of nodes, so that the answer does not depend on the cut.
    """
    assert isinstance(graph.rows.x, Adjacency)
    every = max(1, nodes // SAMPLE)
    rows = (graph.rows.ids % every == 0).nonzero().flatten().cpu().numpy()
    pattern = sp.hstack([_matrix(matrices.inner), _matrix(matrices.outer)], format="csr")[rows]
    sources = sp.vstack([_matrix(graph.rows.x), _matrix(halo)], format="csr")
    pattern.data, sources.data = np.ones(pattern.nnz, np.float32), np.ones(sources.nnz, np.float32)
    counts = torch.tensor([(pattern @ sources).nnz * every, graph.rows.x.structure.num_arcs + len(graph.arcs.indices)])
    aggregated, before = transport.all_reduce(Key(f"{name} entries", 0), counts).wait().tolist()
    return bool(aggregated <= before)


def sparse_aggregation(
    graph: RankGraph, halo: Adjacency, matrices: Matrices, transport: Transport, name: str
) -> Features:
    """M X [n, D] of the graph's sparse X, sparse itself unless it is nearly full."""
    assert isinstance(graph.rows.x, Adjacency)
    own_nD, halo_hD = _matrix(graph.rows.x), _matrix(halo)
    out_nD = sp.csr_array(_matrix(matrices.inner) @ own_nD + _matrix(matrices.outer) @ halo_hD)
    # All ranks alike: a placement may gather what they made.
    sizes = torch.tensor([out_nD.nnz, prod(out_nD.shape)])
    entries, full = transport.all_reduce(Key(f"{name} density", 0), sizes).wait().tolist()
    if DENSE * entries > full:
        return torch.from_numpy(out_nD.toarray()).clone()  # at an address of torch's, on which rounding depends
    return _features(out_nD)


def _halo_rows(own_nD: "sp.csr_array", graph: RankGraph, transport: Transport, name: str) -> "sp.csr_array":
    """Copies of the sparse rows that other ranks own: how many entries each has, then columns and values."""
    counts_h = halo_of(
        graph.rows.route, torch.from_numpy(np.diff(own_nD.indptr).astype(np.int64)), transport, f"{name} counts"
    )
    sent = {peer: own_nD[rows.numpy()] for peer, rows in graph.rows.route.send_slices().items()}
    sizes = {peer: int(counts.sum()) for peer, counts in graph.rows.route.T.pack(counts_h).items()}

    def cross(what: str, parts: dict[int, "np.ndarray[tuple[int], np.dtype[np.generic]]"]) -> Tensor:
        kind = np.int32 if what == "columns" else own_nD.dtype
        wires = {peer: torch.from_numpy(np.array(a, dtype=kind).view(np.uint8)) for peer, a in parts.items()}
        incoming = {peer: count * np.dtype(kind).itemsize for peer, count in sizes.items()}
        come = transport.begin(Key(f"{name} {what}", 0), wires, incoming).wait()
        return torch.cat([torch.empty(0, dtype=torch.uint8), *(come[peer] for peer in sorted(come))])

    columns_e = cross("columns", {peer: rows.indices for peer, rows in sent.items()}).view(torch.int32)
    values_e = cross("values", {peer: rows.data for peer, rows in sent.items()}).numpy().view(own_nD.dtype)
    indptr = np.concatenate([[0], np.cumsum(counts_h.numpy())])
    return sp.csr_array((values_e, columns_e.numpy(), indptr), shape=(len(counts_h), own_nD.shape[1]))


def _matrix(m: Adjacency) -> "sp.csr_array":
    """diag(r) A diag(c)."""
    s = m.structure
    weight = torch.ones(s.num_arcs, dtype=torch.uint8) if m.weight is None else m.weight
    out = sp.csr_array((weight.numpy(), s.indices.numpy(), s.indptr.numpy()), shape=s.shape)
    if m.row_scale is not None:
        out = sp.diags_array(m.row_scale.numpy()) @ out
    if m.col_scale is not None:
        out = out @ sp.diags_array(m.col_scale.numpy())
    return sp.csr_array(out)


def _features(rows: "sp.csr_array") -> Adjacency:
    pattern = Structure(torch.from_numpy(rows.indptr), torch.from_numpy(rows.indices), rows.shape[1])
    return Adjacency(pattern, torch.from_numpy(rows.data), None, None)
