"""`rmat:` a recursive-matrix graph with a heavy-tailed degree (Chakrabarti, Zhan and Faloutsos, SDM 2004)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.graph import Graph
from fullgraph.data.options import parse_options
from fullgraph.data.synthetic import arcs_of, distinct_edges, need, planted_graph
from fullgraph.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RMAT:
    """`edges` distinct edges; each descends `scale` times into a quadrant of the adjacency matrix (a b / c d).

    Give `scale` (2**scale nodes) or `nodes`; edges=-1 gives ten a node. A node's class is the stretch of the matrix it
    lies in, so with a + d above b + c classes are assortative; ids are shuffled afterwards. Both directions are stored
    unless directed=1.
    """

    scale: int = 0
    nodes: int = 0
    edges: int = -1
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19
    d: float = 0.05
    classes: int = 10
    features: int = 64
    noise: float = 1.0
    train: float = 0.6
    val: float = 0.2
    directed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        need("rmat", scale=(self.scale, 0), nodes=(self.nodes, 0), edges=(self.edges, -1), classes=(self.classes, 1))
        need("rmat", features=(self.features, 1), noise=(self.noise, 0), seed=(self.seed, 0))
        need("rmat", a=(self.a, 0), b=(self.b, 0), c=(self.c, 0), d=(self.d, 0))
        if abs(self.a + self.b + self.c + self.d - 1) > 1e-6:
            raise InputError(f"rmat: a + b + c + d is {self.a + self.b + self.c + self.d:g}: let them sum to 1")
        if self.scale and self.nodes:
            raise InputError("rmat: scale and nodes are both given: give one of them")
        if self.scale > 31 or self.nodes > 2**31:
            raise InputError("rmat: a graph has at most 2**31 nodes: give scale=31 or less")
        if self.num_nodes < max(3, self.classes):
            raise InputError(f"rmat: {self.num_nodes} nodes are too few for {self.classes} classes: give more nodes")

    @property
    def num_nodes(self) -> int:
        return self.nodes or 2 ** (self.scale or 14)

    @property
    def num_edges(self) -> int:
        return self.edges if self.edges >= 0 else min(10 * self.num_nodes, self.num_nodes * self.num_nodes // 16)


def load_rmat(text: str) -> Graph:
    """The graph of `rmat:KEY=VALUE,...`."""
    return rmat_graph(parse_options("rmat", RMAT, text))


def rmat_graph(options: RMAT) -> Graph:
    """Draw the edges, name the nodes at random, and plant a class for every stretch of the matrix."""
    rng = np.random.default_rng(options.seed)
    num_nodes = options.num_nodes
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
