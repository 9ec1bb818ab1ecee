"""The contiguous partitioner, for graphs whose node order already puts neighbours close together."""

from __future__ import annotations

from dataclasses import dataclass

from fullgraph.data import Graph
from fullgraph.partition.base import Assignment, blocks_of_ids, check_parts


@dataclass(frozen=True)
class Contiguous:
    """Equal blocks of consecutive ids:  part[i] = floor(i * parts / N)."""

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        return Assignment(blocks_of_ids(graph.num_nodes, parts), parts)
