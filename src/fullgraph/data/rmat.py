"""`rmat:` a recursive-matrix graph with heavy-tailed degrees (Chakrabarti, Zhan and Faloutsos, SDM 2004)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.graph import Graph
from fullgraph.data.synthetic import Nodes, Planted, Share, arcs_of, distinct_edges, planted_graph, require_graph_fits
from fullgraph.errors import InputError
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class RMAT(Planted):
    """`edges` distinct edges; each descends `scale` times into a quadrant of the adjacency matrix (a b / c d).

    Give `scale` (2**scale nodes) or `nodes`; edges=-1 gives ten per node. A node's class is a range of the matrix's
    rows, so with a + d above b + c classes are assortative; ids are shuffled afterwards. Both directions are stored
    unless directed=1.
    """

    scale: Annotated[int, Range(0, 31)] = 0
    nodes: Nodes = 0
    a: Share = 0.57
    b: Share = 0.19
    c: Share = 0.19
    d: Share = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(self.a + self.b + self.c + self.d - 1) > 1e-6:
            raise InputError(f"a + b + c + d is {self.a + self.b + self.c + self.d:g}: let them sum to 1")
        if self.scale and self.nodes:
            raise InputError("scale and nodes are both given: give one of them")
        if self.num_nodes < max(3, self.classes):
            raise InputError(f"{self.num_nodes} nodes are too few for {self.classes} classes: give more nodes")

    @property
    def num_nodes(self) -> int:
        return self.nodes or 2 ** (self.scale or 14)

    @property
    def num_edges(self) -> int:
        return self.edges if self.edges >= 0 else min(10 * self.num_nodes, self.num_nodes * self.num_nodes // 16)

    def __call__(self) -> Graph:
        return rmat_graph(self)


def rmat_graph(options: RMAT) -> Graph:
    """Draw the edges, shuffle the node ids, and plant a class for every range of the matrix."""
    num_nodes = options.num_nodes
    require_graph_fits(
        "rmat", nodes=num_nodes, edges=options.num_edges, classes=options.classes, features=options.features
    )
    rng = np.random.default_rng(options.seed)
    levels = (num_nodes - 1).bit_length()
    crowded = (
        f"rmat: {options.num_edges} distinct edges do not fit {num_nodes} nodes with this skew: "
        "give fewer edges, more nodes, or a, b, c, d closer to 0.25"
    )
    if options.num_edges > 0.4 * num_nodes * (num_nodes - 1) / 2:
        raise InputError(crowded)

    def draw(k: int) -> tuple[Array, Array]:
        row, column = _descend(rng, k, levels, options)
        inside = (row < num_nodes) & (column < num_nodes)
        return row[inside], column[inside]

    keys = distinct_edges(rng, options.num_edges, num_nodes, draw, crowded=crowded)
    rank = rng.permutation(num_nodes).astype(np.int32)
    edges = rank[arcs_of(rng, keys, num_nodes, directed=options.directed)]
    del keys
    labels = np.empty(num_nodes, dtype=np.int64)
    labels[rank] = np.arange(num_nodes, dtype=np.int64) * options.classes // num_nodes
    return planted_graph(rng, edges, labels, options, "rmat")


def _descend(rng: np.random.Generator, k: int, levels: int, options: RMAT) -> tuple[Array, Array]:
    row, column = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
    top, left, right = options.a + options.b, options.a, options.a + options.b + options.c
    for _ in range(levels):
        chance = rng.random(k, dtype=np.float32)
        down = chance >= top
        row <<= 1
        row |= down
        column <<= 1
        column |= np.where(down, chance >= right, chance >= left)
    return row, column
