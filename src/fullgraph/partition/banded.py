"""The banded partitioner, for placements that work on rows block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.partition.base import Assignment, check_parts, undirected_csr


@dataclass(frozen=True)
class Banded:
    """A share of each of `blocks` runs of an order in which neighbours are near one another, for every part.

    place = reverse Cuthill-McKee,   part[i] = floor(place[i] * parts * blocks / N) mod parts:  of a banded matrix, a
    run's rows read the run itself and the two beside it.
    """

    blocks: int = 1

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        if self.blocks < 1:
            raise InputError(f"{self.blocks} blocks: give at least one")
        n = graph.num_nodes
        indptr, indices = undirected_csr(graph)
        pattern = sp.csr_array((np.ones(len(indices), dtype=np.bool_), indices, indptr), shape=(n, n))
        place = np.empty(n, dtype=np.int64)
        place[reverse_cuthill_mckee(pattern, symmetric_mode=True)] = np.arange(n)
        part = place * (parts * self.blocks) // n % parts
        return Assignment(part.astype(np.int32), parts, "banded", seed, place)
