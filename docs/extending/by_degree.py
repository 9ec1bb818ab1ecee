"""A partitioner: all parts get equally many nodes of each degree."""

from dataclasses import dataclass

import numpy as np

from fullgraph.partition import Assignment


@dataclass(frozen=True)
class ByDegree:
    """Nodes by falling in-degree, dealt to parts 0, 1, .., P-1, P-1, .., 1, 0, 0, ..; or to 0, 1, .., P-1, 0, 1, .."""

    back_and_forth: bool = True

    def assign(self, graph, parts, *, seed):
        turn = np.arange(graph.num_nodes) % (2 * parts)
        deal = np.where(turn < parts, turn, 2 * parts - 1 - turn) if self.back_and_forth else turn % parts
        part = np.empty(graph.num_nodes, dtype=np.int32)
        part[np.argsort(-np.diff(graph.indptr), kind="stable")] = deal
        return Assignment(part, parts)
