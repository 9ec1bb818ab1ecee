"""A format: a text file with one edge per line, and a file with the class of every node."""

from dataclasses import dataclass

import numpy as np

import fullgraph as fg
from fullgraph.values import Value


@dataclass(frozen=True)
class EdgeList(Value):
    """`edges` has a line `source target` per edge; line i of `labels` is the class of node i."""

    edges: str = "edges.txt"
    labels: str = "labels.txt"
    seed: int = 0

    def __call__(self):
        edges = np.loadtxt(self.edges, dtype=np.int64)
        y = np.loadtxt(self.labels, dtype=np.int64)
        drawn = np.random.default_rng(self.seed).random(len(y))
        masks = {"train": drawn < 0.6, "val": (drawn >= 0.6) & (drawn < 0.8), "test": drawn >= 0.8}
        return fg.Graph(edges.T, None, y, masks)
