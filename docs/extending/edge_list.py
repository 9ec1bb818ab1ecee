"""A format: a text of edges, a line each, and a class for every node."""

from dataclasses import dataclass

import numpy as np

import fullgraph as fg
from fullgraph.values import Value


@dataclass(frozen=True)
class EdgeList(Value):
    """`edges` has a line `source target` per edge; `labels` a class per line, of node 0, 1, ..."""

    edges: str = "edges.txt"
    labels: str = "labels.txt"
    seed: int = 0

    def __call__(self):
        edges = np.loadtxt(self.edges, dtype=np.int64)
        y = np.loadtxt(self.labels, dtype=np.int64)
        drawn = np.random.default_rng(self.seed).random(len(y))
        masks = {"train": drawn < 0.6, "val": (drawn >= 0.6) & (drawn < 0.8), "test": drawn >= 0.8}
        return fg.Graph(edges.T, None, y, masks)
