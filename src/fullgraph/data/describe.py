"""Describe a graph by the figures that decide how to train on it; a typed one by node type and by relation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from fullgraph.data import csr
from fullgraph.data.graph import Graph
from fullgraph.data.typed.graph import TypedGraph


@dataclass(frozen=True)
class Split:
    """The nodes of one split."""

    train: int
    val: int
    test: int


@dataclass(frozen=True)
class Description:
    """The figures of a graph. None: not defined for this graph."""

    name: str
    nodes: int
    arcs: int
    directed: bool  # True if some arc has no reverse of the same weight
    weighted: bool
    features: int
    sparse: bool  # True if features are compressed rows
    edge_features: int
    self_loops: int
    isolated: int  # nodes without arcs from other nodes
    mean_degree: float  # arcs into a node
    largest_degree: int
    labels: str  # classes, sets of classes, real numbers, or none
    classes: int
    largest_class: float | None  # its share of the labelled nodes
    smallest_class: float | None
    labelled: int  # nodes
    splits: tuple[Split, ...]
    homophily: float | None  # share of arcs between labelled nodes whose ends have the same class
    adjusted_homophily: float | None  # 0: classes at random; 1: all edges inside classes (Platonov et al., 2209.06177)
    pairs: int  # for link prediction


def describe(graph: Graph) -> Description:
    """Describe a graph in one pass over all arcs."""
    target = csr.targets(graph.indptr, graph.indices.dtype)
    loops = target == graph.indices
    degree = np.diff(graph.indptr)
    touched = np.zeros(graph.num_nodes, dtype=bool)
    touched[target[~loops]] = touched[graph.indices[~loops]] = True
    kind = "real numbers" if graph.real else "sets of classes" if graph.multilabel else "classes"
    plain = kind == "classes" and graph.num_classes > 0
    known = np.flatnonzero(graph.y >= 0) if plain else np.arange(graph.num_nodes)
    shares = np.bincount(graph.y[known], minlength=graph.num_classes) / max(1, known.size) if plain else None
    same, adjusted = homophily(graph, target) if plain else (None, None)
    return Description(
        name=graph.name,
        nodes=graph.num_nodes,
        arcs=graph.num_arcs,
        directed=not graph.is_symmetric(),
        weighted=graph.weighted,
        features=graph.num_features,
        sparse=not isinstance(graph.x, np.ndarray),
        edge_features=0 if graph.edge_attr is None else int(graph.edge_attr.shape[1]),
        self_loops=int(np.count_nonzero(loops)),
        isolated=int(np.count_nonzero(~touched)),
        mean_degree=float(degree.mean()),
        largest_degree=int(degree.max()),
        labels=kind if graph.num_classes else "none",
        classes=graph.num_classes,
        largest_class=None if shares is None else float(shares.max()),
        smallest_class=None if shares is None else float(shares.min()),
        labelled=int(known.size) if graph.num_classes else 0,
        splits=() if graph.lacks else splits_of(graph),
        homophily=same,
        adjusted_homophily=adjusted,
        pairs=0 if graph.pairs is None else len(graph.pairs),
    )


def homophily(graph: Graph, target: np.ndarray) -> tuple[float | None, float | None]:
    """h = the share of arcs inside a class, among arcs (without self loops) whose two ends have a class;

    adjusted: (h - s) / (1 - s),  s = sum over classes c of (D_c / D)^2.  D: ends of these arcs; D_c: those in class c.
    """
    one, other = graph.y[graph.indices], graph.y[target]
    arcs = (one >= 0) & (other >= 0) & (graph.indices != target)
    count = int(np.count_nonzero(arcs))
    if not count:
        return None, None
    same = float(np.count_nonzero(one[arcs] == other[arcs])) / count
    ends = np.bincount(one[arcs], minlength=graph.num_classes) + np.bincount(other[arcs], minlength=graph.num_classes)
    chance = float(np.square(ends / (2 * count)).sum())
    return same, (same - chance) / (1 - chance) if chance < 1 else None


def splits_of(graph: Graph) -> tuple[Split, ...]:
    counts = np.stack([mask.sum(axis=0) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)], axis=1)
    return tuple(Split(*row) for row in counts.tolist())


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
    pairs: int  # for link prediction


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
        pairs=0 if graph.pairs is None else len(graph.pairs[1]),
    )
