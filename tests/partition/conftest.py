"""Small graphs with unusual properties: directed, weighted, duplicates, self loops, isolated nodes, empty parts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.partition import Assignment

MakeGraph = Callable[..., Graph]


@pytest.fixture
def make_graph() -> MakeGraph:
    def make(
        seed: int = 0,
        nodes: int = 40,
        arcs: int = 150,
        *,
        weighted: bool = True,
        sparse: bool = False,
        multilabel: bool = False,
        splits: int = 3,
        dtype: Any = np.float32,
    ) -> Graph:
        rng = np.random.default_rng(seed)
        # The last five nodes are isolated; with this many arcs there are duplicates and self loops.
        edges = rng.integers(0, nodes - 5, (2, arcs))
        x: Any = rng.standard_normal((nodes, 6)).astype(dtype)
        if sparse:
            x = sp.csr_array(x * (rng.random(x.shape) < 0.4))
        y = (rng.random((nodes, 4)) < 0.5).astype(np.float32) if multilabel else rng.integers(0, 4, nodes)
        kind = np.stack([rng.permutation(nodes) % 3 for _ in range(splits)], axis=1)
        masks = {"train": kind == 0, "val": kind == 1, "test": kind == 2}
        weight = rng.standard_normal(arcs).astype(np.float32) if weighted else None
        return Graph(edges, x, y, masks, edge_weight=weight, name=f"random{seed}")

    return make


@pytest.fixture
def scatter() -> Callable[[Graph, int], Assignment]:
    """A random assignment that leaves part 1 empty if there are three parts or more."""

    def scattered(graph: Graph, parts: int) -> Assignment:
        part = np.random.default_rng(parts).integers(0, parts, graph.num_nodes)
        if parts > 2:
            part[part == 1] = 2
        return Assignment(part, parts, "test", 5)

    return scattered


@pytest.fixture
def communities() -> Graph:
    """Eight dense groups of 50 nodes in shuffled order, with a few arcs between them."""
    rng = np.random.default_rng(0)
    nodes, groups = 400, 8
    group = rng.permutation(nodes) % groups
    pool = [np.flatnonzero(group == g) for g in range(groups)]
    source = rng.integers(0, nodes, 4000)
    inside = np.array([rng.choice(pool[group[s]]) for s in source])
    target = np.where(rng.random(4000) < 0.95, inside, rng.integers(0, nodes, 4000))
    edges = np.stack([np.r_[source, target], np.r_[target, source]])
    kind = rng.permutation(nodes) % 3
    return Graph(edges, np.ones((nodes, 2), np.float32), group, (kind == 0, kind == 1, kind == 2))
