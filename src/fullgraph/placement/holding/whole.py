"""The whole structure, once on every machine, gathered from the rows that each rank holds.

Legend: N nodes, n of them this rank's own, h halo rows.
"""

from collections.abc import Callable, Mapping

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.halo import halo_of
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build
from fullgraph.placement.holding.shared import Leaders, Patterned, share_matrices
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Key, Transport, gather_rows


def whole_matrices(
    graph: RankGraph, number_n: Tensor, nodes: int, transport: Transport, aggregation: str, dtype: torch.dtype,
    name: str,
) -> Matrices:  # fmt: skip
    """The square matrices of the whole graph, in memory that the ranks of a machine share.

    number_n [n] says which row and column, 0..N-1, an owned row becomes.
    """

    def make(matrices: Matrices) -> Mapping[str, Patterned]:
        return {"inner": matrices.inner, "outer": matrices.outer, "arcs": matrices.arcs}

    shared = share_whole(make, graph, number_n, nodes, transport, aggregation, dtype, name)
    inner, outer, arcs = (shared[part] for part in ("inner", "outer", "arcs"))
    assert isinstance(inner, Adjacency)
    assert isinstance(outer, Adjacency)
    assert isinstance(arcs, Structure)
    return Matrices(inner, outer, arcs)


def share_whole(
    make: Callable[[Matrices], Mapping[str, Patterned]], graph: RankGraph, number_n: Tensor, nodes: int,
    transport: Transport, aggregation: str, dtype: torch.dtype, name: str,
) -> dict[str, Patterned]:  # fmt: skip
    """What `make` makes of those matrices; only the first rank of a machine receives all arcs, and builds."""

    def of_all(leaders: Leaders) -> Mapping[str, Patterned] | None:
        arcs = _gather(graph, number_n, nodes, transport, f"setup/{name} arcs", leaders)
        return None if arcs is None else make(build(arcs, aggregation, _no_halo, dtype))

    return share_matrices(of_all, transport, f"setup/{name} structure")


def _gather(
    graph: RankGraph, number_n: Tensor, nodes: int, transport: Transport, name: str, leaders: Leaders
) -> Arcs | None:
    """All arcs in the new numbers, rows and each row's columns ascending; on leaders only."""

    def at_leaders(what: str, values: Tensor) -> Tensor:
        return gather_rows(values, transport, Key(f"{name} {what}", 0), lambda receiver, sender: receiver in leaders)

    number_n, arcs = number_n.to(torch.int32), graph.arcs
    number = torch.cat([number_n, halo_of(graph.rows.route, number_n, transport, f"{name} numbers")])
    row_N, degree_N = at_leaders("rows", number_n), at_leaders("degrees", arcs.indptr.diff())
    source = at_leaders("sources", number[arcs.indices.long()])
    weight = None if arcs.weight is None else at_leaders("weights", arcs.weight)
    if transport.rank not in leaders:
        return None
    indptr = np.concatenate([[0], np.cumsum(degree_N.numpy())])
    data = np.zeros(len(source), np.int8) if weight is None else weight.numpy()
    index = np.int32 if len(source) < 1 << 31 else np.int64
    pattern = sp.csr_array((data, source.numpy().astype(index, copy=False), indptr.astype(index)), shape=(nodes, nodes))
    if bool((row_N.diff() < 0).any()):
        pattern = pattern[torch.argsort(row_N).numpy()]
    pattern.sort_indices()  # so that a symmetric pattern is seen to be one
    return Arcs(
        torch.from_numpy(pattern.indptr.astype(np.int64)),
        torch.from_numpy(pattern.indices.astype(np.int32, copy=False)),
        None if weight is None else torch.from_numpy(pattern.data),
        0,
    )


def _no_halo(values: Tensor) -> Tensor:
    return values[:0]
