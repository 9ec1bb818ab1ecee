"""Partitioners that look for no cut: by node ids, by chance, or by bands of an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.errors import InputError, one_line
from fullgraph.partition.base import Assignment, blocks_of_ids, check_parts, type_ranges, undirected_csr
from fullgraph.values import Range, Value

STREAM = 0x70617274


@dataclass(frozen=True)
class Contiguous:
    """Equal blocks of consecutive ids, of each node type:  part[i] = floor(i * parts / N)."""

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        return Assignment(blocks_of_ids(graph, parts), parts)


@dataclass(frozen=True)
class Random:
    """Deals shuffled nodes of each type out in turn:  part[pi(i)] = i mod parts;  parts differ by at most one node."""

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        deal = (np.arange(graph.num_nodes) % parts).astype(np.int32)
        # A separate random stream: a graph generator with the same seed may have shuffled its classes the same way.
        rng = np.random.default_rng((seed % (1 << 63), STREAM))
        for low, high in type_ranges(graph):
            rng.shuffle(deal[low:high])
        return Assignment(deal, parts)


@dataclass(frozen=True)
class Banded(Value):
    """Gives every part a share of each of `blocks` runs of an order in which neighbours are close to one another.

    position = reverse Cuthill-McKee,   part[i] = floor(position[i] * parts * blocks / N) mod parts.
    In a banded matrix, a run's rows read only the run and the two runs next to it. Parts named in `empty`, such as
    0,2, get no share.
    """

    needs_structure: ClassVar = True

    blocks: Annotated[int, Range(1, 2**31)] = 1
    empty: tuple[int, ...] = ()

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        check_parts(graph, parts)
        owners, n = self._owners(parts), graph.num_nodes
        if self.blocks > n:
            raise InputError(f"{self.blocks} blocks for {n} nodes: ask for at most as many blocks as there are nodes")
        indptr, indices = undirected_csr(graph)
        pattern = sp.csr_array((np.ones(len(indices), dtype=np.bool_), indices, indptr), shape=(n, n))
        position = np.empty(n, dtype=np.int64)
        position[reverse_cuthill_mckee(pattern, symmetric_mode=True)] = np.arange(n)
        part = owners[position * (len(owners) * self.blocks) // n % len(owners)]
        return Assignment(part, parts, position=position)

    def _owners(self, parts: int) -> Array:
        owners = [part for part in range(parts) if part not in self.empty]
        if len(owners) + len(set(self.empty)) != parts or not owners:
            listed = one_line(",".join(map(str, self.empty)), 60)
            raise InputError(f"empty={listed}: name some of the parts 0 to {parts - 1}, not all")
        return np.array(owners, dtype=np.int32)
