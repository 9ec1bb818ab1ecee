"""`demo`: the built-in graph, in which neighbours matter, including neighbours in other parts."""

from __future__ import annotations

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.graph import Graph
from fullgraph.data.splits import random_masks
from fullgraph.data.synthetic import arcs_of, distinct_edges, planted_features

_NODES, _EDGES, _FEATURES, _CLASSES, _BLOCKS = 12_000, 60_000, 32, 8, 16
_SAME_BLOCK, _SAME_CLASS = 0.85, 0.6


def demo_graph() -> Graph:
    """12,000 nodes, 120,000 arcs, 32 features, 8 classes; an edge stays in its block with 0.85, in its class with 0.6.

    Blocks are independent of classes: a partitioner finds the blocks, and the arcs that it cuts carry as much
    information as the others. A node's own features say little about its class, and so do those of its neighbours; the
    class shows in the mean over several hops. A tenth of the nodes is for training. A model that sees only a quarter of
    the arcs learns the wrong weights.
    """
    rng = np.random.default_rng(2024)
    num_cells = _BLOCKS * _CLASSES
    cell = (np.arange(_NODES) % num_cells)[rng.permutation(_NODES)]  # cell = block * classes + class
    keys = distinct_edges(rng, _EDGES, _NODES, _Draw(rng, cell), crowded="the demo graph is too dense")
    edges = arcs_of(rng, keys, _NODES, directed=False)
    labels = cell % _CLASSES
    x = planted_features(rng, labels, _CLASSES, _FEATURES, noise=1.0)
    return Graph(edges, x, labels, random_masks(rng, _NODES, train=0.1, val=0.2), name="demo")


class _Draw:
    """Draws pairs (u, v): u uniformly, v uniformly in a cell drawn from u's block and class."""

    def __init__(self, rng: np.random.Generator, cell: Array) -> None:
        self.rng, self.cell = rng, cell
        self.members = np.argsort(cell, kind="stable")
        self.size = np.bincount(cell)
        self.start = np.cumsum(self.size) - self.size

    def __call__(self, count: int) -> tuple[Array, Array]:
        u = self.rng.integers(0, self.cell.size, count)
        block, label = np.divmod(self.cell[u], _CLASSES)
        to = self._move(block, _BLOCKS, _SAME_BLOCK) * _CLASSES + self._move(label, _CLASSES, _SAME_CLASS)
        return u, self.members[self.start[to] + (self.rng.random(count) * self.size[to]).astype(np.int64)]

    def _move(self, at: Array, num: int, stay: float) -> Array:
        """Keep `at` with probability `stay`, else draw another of the `num` values."""
        other = (at + self.rng.integers(1, num, at.size)) % num
        return np.where(self.rng.random(at.size) < stay, at, other)
