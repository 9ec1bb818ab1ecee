"""METIS through pymetis: by edge cut, by communication volume, or the better of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.partition.base import (
    Assignment,
    Weight,
    blocks_of_ids,
    check_parts,
    check_weights,
    needs_no_search,
    quietly,
    require,
    undirected_csr,
    vertex_weight,
)
from fullgraph.partition.layout import halo_rows
from fullgraph.resources import require_memory
from fullgraph.values import OneOf, Value

OBJECTIVES = ("auto", "cut", "volume")

# Refinement for volume takes time in proportion to arcs x parts: about a minute at this limit. Above it, auto uses cut.
VOLUME_LIMIT = 100_000_000

# Peak memory was 122 on a block model of 1 million nodes, 140 on one of 4 million, 154 on a power law of 1 million.
# If the figure is too high, the user must choose another partitioner; if it is too low, the run fails.
BYTES_PER_ARC = 150

# With 4 to 32 parts, recursive bisection gave about 2 % fewer halo rows than k-way (mean of 14 real graphs, 2 seeds).
RECURSIVE_PARTS = 32


@dataclass(frozen=True)
class Metis(Value):
    """Balances  sum of a + b * degree  over parts, and minimises arcs cut or halo rows (Karypis & Kumar 1998).

    objective: cut, volume (halo rows of the symmetrised graph), or auto: both, and the result with fewer halo rows.
    Above VOLUME_LIMIT = arcs x parts, auto runs cut only. node_weight is a (None: the mean degree), degree_weight b.
    """

    objective: Annotated[str, OneOf(*OBJECTIVES)] = "auto"
    node_weight: Weight | None = None
    degree_weight: Weight = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self.node_weight, self.degree_weight)

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        if needs_no_search(graph, parts):
            return Assignment(blocks_of_ids(graph.num_nodes, parts), parts)
        pymetis = require("pymetis", "pymetis")
        index = pymetis.zero_copy_dtype()
        _require_memory(graph.num_arcs)
        weight = vertex_weight(graph, self.node_weight, self.degree_weight, int(np.iinfo(index).max) // 4)
        indptr, indices = undirected_csr(graph)
        if len(indices) > graph.num_arcs:  # the graph is directed: METIS gets each arc in both directions
            _require_memory(len(indices))
        # METIS's own integer type avoids a copy.
        adjacency = pymetis.CSRAdjacency(indptr.astype(index), indices.astype(index))
        del indptr, indices
        best: Array | None = None
        fewest = 0
        objectives = self._objectives(len(adjacency.adjacent) * parts)
        for objective in objectives:
            part = _search(pymetis, adjacency, weight.astype(index), parts, objective, seed)
            rows = halo_rows(graph, Assignment(part, parts)) if len(objectives) > 1 else 0
            if best is None or rows < fewest:
                best, fewest = part, rows
        assert best is not None
        return Assignment(best, parts)

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


def _search(pymetis: Any, adjacency: Any, weight: Array, parts: int, objective: str, seed: int) -> Array:
    options = pymetis.Options(seed=seed % (1 << 31))
    # Recursive bisection supports only the edge cut.
    recursive = objective == "cut" and parts <= RECURSIVE_PARTS
    if objective == "volume":
        options.objtype = int(pymetis.ObjType.VOL)
    with quietly():
        found = pymetis.part_graph(parts, adjacency, vweights=weight, recursive=recursive, options=options)
    return np.asarray(found.vertex_part).astype(np.int32)
