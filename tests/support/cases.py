"""Small graphs with unusual shapes, each with an assignment of its nodes to any number of parts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.partition import Assignment, partition

Case = Callable[[int], tuple[Graph, Assignment]]


def random_graph(
    nodes: int = 60,
    arcs: int = 240,
    *,
    seed: int = 0,
    directed: bool = False,
    weighted: bool = False,
    isolated: int = 0,
    sparse: bool = False,
    multilabel: bool = False,
    features: int = 12,
    classes: int = 4,
    train: np.ndarray[Any, Any] | None = None,
) -> Graph:
    """A random graph; directed ones keep duplicates and self loops."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, nodes - isolated, (2, arcs))
    weight = rng.uniform(0.2, 2.0, arcs) if weighted else None
    if not directed:
        keep = source != target
        source, target = source[keep], target[keep]
        weight = None if weight is None else np.concatenate([weight[keep], weight[keep]])
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    x = rng.standard_normal((nodes, features))
    if sparse:
        x = sp.csr_array(x * (rng.random(x.shape) < 0.3))
    y = (rng.random((nodes, classes)) < 0.3).astype(np.float32) if multilabel else rng.integers(0, classes, nodes)
    if not multilabel:
        y[:classes] = np.arange(classes)
    chosen = rng.random(nodes) < 0.5 if train is None else train
    rest = np.cumsum(~chosen) % 2 == 0
    masks = (chosen, ~chosen & rest, ~chosen & ~rest)
    return Graph(np.stack([source, target]), x, y, masks, edge_weight=weight, name="case")


def _cut(graph: Graph, part: np.ndarray[Any, Any], parts: int) -> tuple[Graph, Assignment]:
    return graph, Assignment(part=(part % parts).astype(np.int32), parts=parts, method="case", seed=0)


def _scattered(parts: int, **options: object) -> tuple[Graph, Assignment]:
    graph = random_graph(**options)  # type: ignore[arg-type]
    return _cut(graph, np.random.default_rng(1).integers(0, parts, graph.num_nodes), parts)


def _no_training_nodes(parts: int) -> tuple[Graph, Assignment]:
    part = np.arange(60) % parts
    train = (part != 0) | (parts == 1)
    train[::7] = False
    return _cut(random_graph(train=train & (np.arange(60) % 5 != 0)), part, parts)


def _no_halo(parts: int) -> tuple[Graph, Assignment]:
    """Rank 0 owns exactly the nodes without arcs to the rest."""
    graph = random_graph(isolated=20)
    part = np.where(np.arange(60) >= 40, 0, 1 + np.arange(60) % max(1, parts - 1))
    return _cut(graph, part, parts)


def _empty_parts(parts: int) -> tuple[Graph, Assignment]:
    return _cut(random_graph(), np.zeros(60, dtype=np.int64) + parts - 1, parts)


def _overfull(parts: int) -> tuple[Graph, Assignment]:
    """A star of few nodes: more ranks than METIS can fill sensibly."""
    graph = random_graph(nodes=6, arcs=14, classes=2)
    return graph, partition(graph, parts, method="metis", seed=0)


CASES: dict[str, Case] = {
    "undirected": partial(_scattered),
    "directed": partial(_scattered, directed=True),
    "weighted": partial(_scattered, directed=True, weighted=True),
    "isolated": partial(_scattered, isolated=9),
    "sparse": partial(_scattered, sparse=True),
    "wide": partial(_scattered, sparse=True, features=120),  # its aggregation is far denser
    "multilabel": partial(_scattered, multilabel=True),
    "no training nodes": _no_training_nodes,
    "no halo": _no_halo,
    "empty parts": _empty_parts,
    "overfull": _overfull,
}


def same_fields(a, b):
    """Return whether two graphs' named arrays of nodes and edges are equal."""
    pairs = [(a.nodes, b.nodes), (a.edges, b.edges)]
    return all(x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x) for x, y in pairs)
