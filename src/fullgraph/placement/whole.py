"""The whole structure on every rank, gathered from the rows that each holds.

Legend: N nodes, n of them this rank's own, h halo rows.
"""

import torch
from torch import Tensor

from fullgraph.placement.adjacency import Arcs, Matrices, build
from fullgraph.placement.local import LocalGraph
from fullgraph.transport import Key, Transport, gather_rows


def whole_arcs(local: LocalGraph, rows: tuple[int, ...], transport: Transport, name: str) -> Arcs:
    """All arcs of the graph, nodes numbered in the order of their owners; rank r owns the r-th block of rows[r]."""

    def of_all(what: str, values: Tensor) -> Tensor:
        return gather_rows(values, transport, Key(f"{name} {what}", 0))

    start = sum(rows[: transport.rank])
    number_n = torch.arange(start, start + len(local.ids), dtype=torch.int32)
    number = torch.cat([number_n, local.halo_of(number_n, transport, f"{name} numbers")])
    arcs = local.arcs
    indptr = torch.zeros(sum(rows) + 1, dtype=torch.int64)
    torch.cumsum(of_all("degrees", arcs.indptr.diff()), 0, out=indptr[1:])
    indices = of_all("sources", number[arcs.indices.long()])
    return Arcs(indptr, indices, None if arcs.weight is None else of_all("weights", arcs.weight), 0)


def whole_matrices(
    local: LocalGraph,
    number_n: Tensor,
    nodes: int,
    transport: Transport,
    aggregation: str,
    dtype: torch.dtype,
    name: str,
) -> Matrices:
    """The square matrices of the whole graph, node i of this rank's having the number number_n[i]."""
    import numpy as np
    import scipy.sparse as sp

    def of_all(what: str, values: Tensor) -> Tensor:
        return gather_rows(values, transport, Key(f"{name} {what}", 0))

    arcs = local.arcs
    number = torch.cat([number_n, local.halo_of(number_n, transport, f"{name} numbers")])
    counts = of_all("degrees", arcs.indptr.diff())
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    indices = of_all("sources", number[arcs.indices.long()])
    order = torch.argsort(of_all("rows", number_n).long())
    places = sp.csr_array((np.arange(len(indices)), indices.numpy(), indptr.numpy()), shape=(nodes, nodes))
    places = places[order.numpy()]
    places.sort_indices()
    weight = None if arcs.weight is None else of_all("weights", arcs.weight)[torch.from_numpy(places.data)]
    whole = Arcs(torch.from_numpy(places.indptr).long(), torch.from_numpy(places.indices).int(), weight, 0)
    return build(whole, aggregation, lambda values: values[:0], dtype)
