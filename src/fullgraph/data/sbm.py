"""`sbm:` a stochastic block model: many blocks, most edges inside a block, classes tied to blocks."""

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
class SBM(Planted):
    """`edges` distinct undirected edges, the share `p_in` of them inside a block; block b has class b mod `classes`.

    edges=-1 gives ten per node; blocks=0 chooses 64, or fewer if blocks would be too dense. Both directions are stored
    unless directed=1. Features are a class mean plus `noise` times white noise; nodes outside train and val are for
    testing.
    """

    nodes: Annotated[int, Range(3, 2**31)] = 10_000
    blocks: Nodes = 0
    p_in: Share = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.classes, self.blocks) > self.nodes:
            raise InputError(f"{self.nodes} nodes are too few for the classes or blocks: give more nodes")

    @property
    def num_edges(self) -> int:
        if self.edges >= 0:
            return self.edges
        return min(10 * self.nodes, self.nodes * self.nodes // (8 * max(1, self.classes, self.blocks)))

    @property
    def num_blocks(self) -> int:
        """64, or fewer if blocks would be over a quarter full:  B <= N^2 / (8 p_in E);  at least one per class."""
        if self.blocks:
            return self.blocks
        room = self.nodes * self.nodes / (8 * max(1.0, self.p_in * self.num_edges))
        return min(self.nodes, max(self.classes, min(64, int(room)), 1))

    def __call__(self) -> Graph:
        return sbm_graph(self)


def sbm_graph(options: SBM) -> Graph:
    """Assign nodes to equal blocks in random order; draw edges uniformly inside blocks and between them."""
    require_graph_fits(
        "sbm", nodes=options.nodes, edges=options.num_edges, classes=options.classes, features=options.features
    )
    rng = np.random.default_rng(options.seed)
    block = (np.arange(options.nodes, dtype=np.int32) % options.num_blocks)[rng.permutation(options.nodes)]
    keys = block_edges(rng, block, options.num_edges, options.p_in)
    edges = arcs_of(rng, keys, options.nodes, directed=options.directed)
    del keys
    return planted_graph(rng, edges, block % options.classes, options, "sbm")


def block_edges(rng: np.random.Generator, block: Array, count: int, p_in: float) -> Array:
    """Return keys of `count` distinct edges, round(p_in * count) of them with both ends in one block."""
    num_nodes = block.size
    size = np.bincount(block)
    start = np.concatenate([[0], np.cumsum(size)])[:-1]
    members = np.argsort(block, kind="stable").astype(np.int32)
    # A block is drawn in proportion to its pairs, so that every pair is equally likely.
    pairs = size * (size - 1.0)
    bound = np.cumsum(pairs)

    def inside(k: int) -> tuple[Array, Array]:
        home = np.searchsorted(bound, rng.random(k) * bound[-1], side="right")
        first, span = start[home], size[home]
        u, v = (members[first + (rng.random(k) * span).astype(np.int64)] for _ in range(2))
        return u, v

    def between(k: int) -> tuple[Array, Array]:
        u, v = rng.integers(0, num_nodes, (2, k), dtype=np.int32)
        apart = block[u] != block[v]
        return u[apart], v[apart]

    num_in = round(p_in * count)
    room_in, room_all = bound[-1] / 2, num_nodes * (num_nodes - 1.0) / 2
    crowded = (
        f"sbm: {count} edges with p_in={p_in:g} do not fit {num_nodes} nodes in {size.size} blocks: "
        "give fewer edges, or more nodes, or other blocks"
    )
    if num_in > 0.8 * room_in or count - num_in > 0.8 * (room_all - room_in):
        raise InputError(crowded)
    keys = distinct_edges(rng, num_in, num_nodes, inside, crowded=crowded)
    return np.concatenate([keys, distinct_edges(rng, count - num_in, num_nodes, between, crowded=crowded)])
