"""The random partitioner, the one that knows nothing of the arcs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fullgraph.data import Graph
from fullgraph.partition.base import Assignment, check_parts

STREAM = 0x70617274


@dataclass(frozen=True)
class Random:
    """Deals shuffled nodes out in turn:  part[pi(i)] = i mod parts,  so that parts differ by one node at most."""

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        deal = (np.arange(graph.num_nodes) % parts).astype(np.int32)
        # A stream of its own: a generator of graphs with the same seed may have shuffled its classes the same way.
        np.random.default_rng((seed % (1 << 63), STREAM)).shuffle(deal)
        return Assignment(deal, parts)
