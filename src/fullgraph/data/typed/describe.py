"""Describe a typed graph: figures by node type and by relation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fullgraph.data.describe import Split, splits_of
from fullgraph.data.typed.graph import TypedGraph


@dataclass(frozen=True)
class TypeDescription:
    """The figures of one node type."""

    name: str
    nodes: int
    features: int  # 0: none
    sparse: bool
    isolated: int  # nodes without any edge


@dataclass(frozen=True)
class RelationDescription:
    """The figures of one relation."""

    source: str
    name: str
    target: str
    edges: int
    mean_degree: float  # edges into a node of the target type
    largest_degree: int
    weighted: bool
    edge_features: int


@dataclass(frozen=True)
class TypedDescription:
    """The figures of a typed graph. None: the graph has no labels."""

    name: str
    nodes: int
    arcs: int
    types: tuple[TypeDescription, ...]
    relations: tuple[RelationDescription, ...]
    target: str | None
    labels: str  # classes, sets of classes, real numbers, or none
    classes: int
    labelled: int  # nodes
    splits: tuple[Split, ...]


def describe_typed(graph: TypedGraph) -> TypedDescription:
    """Describe a typed graph in one pass over all edges."""
    touched = {kind: np.zeros(nodes.num_nodes, dtype=bool) for kind, nodes in graph.nodes.items()}
    relations = []
    for (source, name, target), edges in graph.edges.items():
        degree = np.diff(edges.indptr)
        touched[target][degree > 0] = True
        touched[source][edges.indices] = True
        relations.append(
            RelationDescription(
                source, name, target, edges.num_arcs,
                mean_degree=float(degree.mean()) if degree.size else 0.0,
                largest_degree=int(degree.max(initial=0)),
                weighted=edges.edge_weight is not None,
                edge_features=0 if edges.edge_attr is None else int(edges.edge_attr.shape[1]),
            )
        )  # fmt: skip
    types = [
        TypeDescription(
            kind, nodes.num_nodes, nodes.num_features, bool(sp.issparse(nodes.x)), int((~touched[kind]).sum())
        )
        for kind, nodes in graph.nodes.items()
    ]
    labels = graph.labels
    kind = "none" if labels is None or "y" in labels.lacks else "classes"
    if labels is not None and kind == "classes":
        kind = "real numbers" if labels.real else "sets of classes" if labels.multilabel else kind
    plain = labels is not None and kind == "classes"
    return TypedDescription(
        name=graph.name,
        nodes=graph.num_nodes,
        arcs=graph.num_arcs,
        types=tuple(types),
        relations=tuple(relations),
        target=graph.target,
        labels=kind,
        classes=0 if labels is None else labels.num_classes,
        labelled=0 if labels is None or kind == "none" else int((labels.y >= 0).sum()) if plain else labels.num_nodes,
        splits=() if labels is None or labels.lacks else splits_of(labels),
    )
