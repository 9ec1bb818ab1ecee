"""METIS through pymetis: parts by edge cut, by communication volume, or the better of both; pieces of a part."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.partition.base import Assignment, Balanced, Weight, even_blocks, quietly, require, undirected_csr
from fullgraph.partition.layout import halo_rows
from fullgraph.resources import require_memory
from fullgraph.values import OneOf

OBJECTIVES = ("auto", "cut", "volume")
# Refinement for volume takes time in proportion to arcs x parts: about a minute at this limit. Above it, auto uses cut.
VOLUME_LIMIT = 100_000_000
# Peak memory was 122 on a block model of 1 million nodes, 140 on one of 4 million, 154 on a power law of 1 million.
# If the figure is too high, the user must choose another partitioner; if it is too low, the run fails.
BYTES_PER_ARC = 150
# With 4 to 32 parts, recursive bisection gave about 2 % fewer halo rows than k-way (mean of 14 real graphs, 2 seeds).
RECURSIVE_PARTS = 32


@dataclass(frozen=True)
class Metis(Balanced):
    """Balances  sum of a + b * degree  over parts, and minimises edges cut or halo rows (Karypis & Kumar 1998).

    objective: cut, volume (halo rows of the symmetrised graph), or auto: both, and the result with fewer halo rows.
    Above VOLUME_LIMIT = arcs x parts, auto runs cut only.
    """

    needs_structure: ClassVar = True

    objective: Annotated[str, OneOf(*OBJECTIVES)] = "auto"
    node_weight: Weight | None = None
    degree_weight: Weight = 1.0

    def search(self, graph: Graph, parts: int, seed: int) -> Array:
        _require_memory(graph.num_arcs)
        limit = int(np.iinfo(require("pymetis", "pymetis").zero_copy_dtype()).max) // 4
        weight = self.weights(graph, limit)
        indptr, indices = undirected_csr(graph)
        if len(indices) > graph.num_arcs:  # the graph is directed: METIS gets each arc in both directions
            _require_memory(len(indices))
        adjacency = adjacency_of(indptr, indices)
        del indptr, indices
        best: Array | None = None
        fewest = 0
        objectives = self._objectives(len(adjacency.adjacent) * parts)
        for objective in objectives:
            # Recursive bisection knows the cut only.
            recursive, volume = objective == "cut" and parts <= RECURSIVE_PARTS, objective == "volume"
            part = metis_parts(adjacency, weight, parts, seed=seed, recursive=recursive, volume=volume)
            rows = halo_rows(graph, Assignment(part, parts)) if len(objectives) > 1 else 0
            if best is None or rows < fewest:
                best, fewest = part, rows
        assert best is not None
        return best

    def _objectives(self, work: int) -> tuple[str, ...]:
        if self.objective != "auto":
            return (self.objective,)
        return ("cut", "volume") if work <= VOLUME_LIMIT else ("cut",)


@dataclass(frozen=True)
class MetisCut(Metis):
    """METIS, minimising arcs between parts."""

    objective: Annotated[str, OneOf(*OBJECTIVES)] = "cut"


@dataclass(frozen=True)
class MetisVolume(Metis):
    """METIS, minimising halo rows."""

    objective: Annotated[str, OneOf(*OBJECTIVES)] = "volume"


def _require_memory(arcs: int) -> None:
    require_memory(BYTES_PER_ARC * arcs, "METIS", "choose --partitioner fennel, whose memory does not grow with edges")


def adjacency_of(indptr: Array, indices: Array) -> Any:
    """Return the pattern for METIS; its own integer type avoids a copy."""
    pymetis = require("pymetis", "pymetis")
    index = pymetis.zero_copy_dtype()
    return pymetis.CSRAdjacency(indptr.astype(index), indices.astype(index))


def metis_parts(
    adjacency: Any, weight: Array, parts: int, *, seed: int, recursive: bool, volume: bool = False,
    arc_weight: Array | None = None,
) -> Array:  # fmt: skip
    """Return the part of every node: parts of equal weight with few arcs, or halo rows (`volume`), between them."""
    pymetis = require("pymetis", "pymetis")
    index, options = pymetis.zero_copy_dtype(), pymetis.Options(seed=seed % (1 << 31))
    if volume:
        options.objtype = int(pymetis.ObjType.VOL)
    arcs = {} if arc_weight is None else {"eweights": arc_weight.astype(index)}
    with quietly():
        found = pymetis.part_graph(
            parts, adjacency, vweights=weight.astype(index), recursive=recursive, options=options, **arcs
        )
    return np.asarray(found.vertex_part).astype(np.int32)


def pieces_of(indptr: Array, indices: Array, pieces: int) -> Array:
    """Return the piece of every row of a square pattern, as a pipeline computes them one after another.

    They are METIS parts of equal weight, or blocks without METIS.
    """
    rows = len(indptr) - 1
    if pieces == 1 or rows < 2 * pieces or find_spec("pymetis") is None:
        return even_blocks(rows, pieces)
    ones = np.ones(len(indices), dtype=np.bool_)  # a count of parallel arcs could wrap to zero
    pattern = sp.csr_array((ones, indices, indptr), shape=(rows, rows))
    both = sp.csr_array(pattern + pattern.T)
    both.setdiag(0)
    both.eliminate_zeros()
    degree = np.diff(both.indptr)
    weight = degree + int(degree.mean()) + 1
    return metis_parts(adjacency_of(both.indptr, both.indices), weight, pieces, seed=0, recursive=True)
