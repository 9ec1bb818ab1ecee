"""The union of a typed graph: one numbering of all nodes and one set of edges, which is partitioned and trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data import csr
from fullgraph.data.arrays import Array
from fullgraph.data.fields import check_fields
from fullgraph.data.graph import Graph
from fullgraph.data.pairs import Pairs
from fullgraph.data.splits import MASKS
from fullgraph.graph_types import EDGE_TYPE, NODE_TYPE, GraphTypes, RelationFact, TypeFact

if TYPE_CHECKING:
    from fullgraph.data.typed.graph import TypedGraph


def union_of(graph: TypedGraph) -> Graph:
    """Return the union: nodes numbered type after type, the edges of all relations, labels of the target type.

    Its fields `node_type` and `edge_type` number types and relations. Its features are sparse: a node's row has its own
    features in the columns of its type. names: those of the target type's nodes, for predictions.

    A node that several relations read is one node here, so a partitioner counts it once, and so do halos.
    """
    first = {kind: low for kind, low, _ in graph.ranges()}
    total, index = graph.num_nodes, csr.index_dtype(graph.num_nodes)
    source, target = np.empty(graph.num_arcs, index), np.empty(graph.num_arcs, index)
    relation = np.empty(graph.num_arcs, _smallest(len(graph.edges)))
    done = 0
    for number, ((kind, _, into), edges) in enumerate(graph.edges.items()):
        here = slice(done, done := done + edges.num_arcs)
        np.add(edges.indices, first[kind], out=source[here], casting="unsafe")
        np.add(csr.targets(edges.indptr, index), first[into], out=target[here], casting="unsafe")
        relation[here] = number
    indptr, indices, order = csr.csr_by_target(source, target, total, np.arange(graph.num_arcs))
    weight = _weights(graph)
    union = Graph.from_csr(
        indptr, indices, _features(graph), *_padded(graph, total), name=graph.name,
        edge_weight=None if weight is None else weight[order],
    )  # fmt: skip
    kinds = np.repeat(np.arange(len(graph.nodes)), [kind.num_nodes for kind in graph.nodes.values()])
    arrays = {NODE_TYPE: kinds.astype(_smallest(len(graph.nodes))), EDGE_TYPE: relation[order]}
    labels = graph.labels
    return union._with(
        types=types_of(graph),
        edge_attr=_edge_features(graph, order),
        pairs=_pairs(graph, first),
        fields=check_fields(arrays, total, graph.num_arcs),
        names=None if graph.target is None else graph.nodes[graph.target].names,
        lacks=union.lacks if labels is None else labels.lacks,
        num_classes=0 if labels is None else labels.num_classes,
        class_names=() if labels is None else labels.class_names,
        notes=graph.notes,
    )


def types_of(graph: TypedGraph) -> GraphTypes:
    """Return the facts about a graph's types and relations."""
    kinds = (TypeFact(name, kind.num_nodes, kind.num_features) for name, kind in graph.nodes.items())
    relations = (
        RelationFact(*name, edges.num_arcs, weighted=edges.edge_weight is not None, features=edges.num_features)
        for name, edges in graph.edges.items()
    )
    pairs = "__".join(graph.pairs[0]) if graph.pairs else ""
    return GraphTypes(tuple(kinds), tuple(relations), graph.target or "", pairs)


def _pairs(graph: TypedGraph, first: dict[str, int]) -> Pairs | None:
    """Return the pairs in the union's numbers."""
    if graph.pairs is None:
        return None
    (source, _, target), pairs = graph.pairs
    return Pairs(pairs.ends + np.array([first[source], first[target]]), pairs.y, pairs.split)


def _smallest(count: int) -> Any:
    return np.int16 if count < 1 << 15 else np.int32


def _weights(graph: TypedGraph) -> Array | None:
    """Return the weights of all edges, 1 in relations without weights; None if no relation has any."""
    given = [edges.edge_weight for edges in graph.edges.values()]
    kinds = [weight.dtype for weight in given if weight is not None]
    if not kinds:
        return None
    kind = np.result_type(*kinds)
    counts = [edges.num_arcs for edges in graph.edges.values()]
    return np.concatenate(
        [np.ones(count, kind) if own is None else own for own, count in zip(given, counts, strict=True)]
    )


def _features(graph: TypedGraph) -> Any:
    """Return sparse features with one block of columns per type; a single empty column if no type has features."""
    width = sum(kind.num_features for kind in graph.nodes.values())
    held = [kind.x.dtype for kind in graph.nodes.values() if kind.x is not None]
    dtype = np.result_type(np.float32, *held)
    data, indices, lengths = [np.empty(0, dtype)], [np.empty(0, np.int32)], []
    column = 0
    for kind in graph.nodes.values():
        if kind.x is None:
            lengths.append(np.zeros(kind.num_nodes, np.int64))
            continue
        rows = sp.csr_array(kind.x if sp.issparse(kind.x) else np.asarray(kind.x, dtype))
        data.append(rows.data.astype(dtype, copy=False))
        indices.append(rows.indices.astype(np.int32) + np.int32(column))
        lengths.append(np.diff(rows.indptr).astype(np.int64))
        column += kind.num_features
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return sp.csr_array((np.concatenate(data), np.concatenate(indices), indptr), shape=(graph.num_nodes, max(1, width)))


def _edge_features(graph: TypedGraph, order: Any) -> Array | None:
    """Return the features of all edges in the union's order, with zeros up to the widest relation; None if none has.

    Only a user's own model reads them.
    """
    width = max((edges.num_features for edges in graph.edges.values()), default=0)
    if not width:
        return None
    kinds = [edges.edge_attr.dtype for edges in graph.edges.values() if edges.edge_attr is not None]
    out = np.zeros((graph.num_arcs, width), np.result_type(*kinds))
    done = 0
    for edges in graph.edges.values():
        if edges.edge_attr is not None:
            out[done : done + edges.num_arcs, : edges.num_features] = edges.edge_attr
        done += edges.num_arcs
    sorted_attr: Array = out[order]
    return sorted_attr


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
