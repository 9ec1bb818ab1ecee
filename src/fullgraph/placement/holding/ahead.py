"""The aggregation of sparse input features, computed once: a product of sparse matrices.

Legend: n owned rows, h halo rows, D features, e entries.
"""

from math import prod

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.holding.local import LocalGraph
from fullgraph.transport import Key, Transport

DENSE = 3  # a matrix with more than 1 / DENSE of its entries takes less memory, and time, without their positions


def sparse_aggregation(local: LocalGraph, matrices: Matrices, transport: Transport, name: str) -> Features:
    """M X [n, D] of the local graph's sparse X, sparse itself unless it is nearly full."""
    assert isinstance(local.x, Adjacency)
    own_nD = _matrix(local.x)
    halo_hD = _halo_rows(own_nD, local, transport, name)
    out_nD = sp.csr_array(_matrix(matrices.inner) @ own_nD + _matrix(matrices.outer) @ halo_hD)
    # All ranks alike: a placement may gather what they made.
    sizes = torch.tensor([out_nD.nnz, prod(out_nD.shape)])
    entries, full = transport.all_reduce(Key(f"{name} density", 0), sizes).wait().tolist()
    if DENSE * entries > full:
        return torch.from_numpy(out_nD.toarray())
    pattern = Structure(torch.from_numpy(out_nD.indptr), torch.from_numpy(out_nD.indices), out_nD.shape[1])
    return Adjacency(pattern, torch.from_numpy(out_nD.data), None, None)


def _halo_rows(own_nD: "sp.csr_array", local: LocalGraph, transport: Transport, name: str) -> "sp.csr_array":
    """Copies of the sparse rows that other ranks own: how many entries each has, then columns and values."""
    counts_h = local.halo_of(torch.from_numpy(np.diff(own_nD.indptr).astype(np.int64)), transport, f"{name} counts")
    sent = {peer: own_nD[rows.numpy()] for peer, rows in local.route.send_slices().items()}
    sizes = {peer: int(counts.sum()) for peer, counts in local.route.T.pack(counts_h).items()}

    def cross(what: str, parts: dict[int, "np.ndarray[tuple[int], np.dtype[np.generic]]"]) -> Tensor:
        kind = np.int32 if what == "columns" else own_nD.dtype
        wires = {p: torch.from_numpy(np.ascontiguousarray(a, dtype=kind)).view(torch.uint8) for p, a in parts.items()}
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
