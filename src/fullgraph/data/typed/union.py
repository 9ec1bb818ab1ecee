"""The union of a typed graph: one numbering of all nodes, one set of edges, as partitioners read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data import csr
from fullgraph.data.arrays import Array
from fullgraph.data.graph import Graph
from fullgraph.data.splits import MASKS

if TYPE_CHECKING:
    from fullgraph.data.typed.graph import TypedGraph


class UnionGraph(Graph):
    """Nodes numbered type after type, the edges of all relations, labels of the target type, and no features.

    A node that several relations read is one node here, so a partitioner counts it once, and so do halos.
    """

    starts: tuple[int, ...]

    @property
    def type_starts(self) -> tuple[int, ...]:
        return self.starts


def union_of(graph: TypedGraph) -> UnionGraph:
    """Return the union of all relations."""
    first = {kind: low for kind, low, _ in graph.ranges()}
    total, index = graph.num_nodes, csr.index_dtype(graph.num_nodes)
    source, target = np.empty(graph.num_arcs, index), np.empty(graph.num_arcs, index)
    done = 0
    for (kind, _, into), edges in graph.edges.items():
        here = slice(done, done := done + edges.num_arcs)
        np.add(edges.indices, first[kind], out=source[here], casting="unsafe")
        np.add(csr.targets(edges.indptr, index), first[into], out=target[here], casting="unsafe")
    indptr, indices, _ = csr.csr_by_target(source, target, total)
    no_x = sp.csr_array((total, 1), dtype=np.float32)
    union = UnionGraph.from_csr(indptr, indices, no_x, *_padded(graph, total), name=graph.name)
    assert isinstance(union, UnionGraph)
    object.__setattr__(union, "starts", graph.starts)
    return union


def _padded(graph: TypedGraph, total: int) -> tuple[Any, Any]:
    """Return the labels and masks of the target type for all nodes; those of other types are unlabelled."""
    labels = graph.labels
    if labels is None:
        return None, None
    low, high = next((low, high) for kind, low, high in graph.ranges() if kind == graph.target)

    def padded(values: Array, fill: float) -> Array:
        out = np.full((total, *values.shape[1:]), fill, dtype=values.dtype)
        out[low:high] = values
        return out

    y = None if "y" in labels.lacks else padded(labels.y, np.nan if labels.real else 0 if labels.multilabel else -1)
    return y, None if labels.lacks else tuple(padded(getattr(labels, mask), False) for mask in MASKS)
