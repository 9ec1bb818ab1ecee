"""The random partitioner, which does not look at edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fullgraph.data import Graph
from fullgraph.partition.base import Assignment, check_parts

STREAM = 0x70617274


@dataclass(frozen=True)
class Random:
    """Deals shuffled nodes out in turn:  part[pi(i)] = i mod parts;  parts differ by at most one node."""

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        deal = (np.arange(graph.num_nodes) % parts).astype(np.int32)
        # A separate random stream: a graph generator with the same seed may have shuffled its classes the same way.
        np.random.default_rng((seed % (1 << 63), STREAM)).shuffle(deal)
        return Assignment(deal, parts)
