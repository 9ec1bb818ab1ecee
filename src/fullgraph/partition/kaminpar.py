"""KaMinPar, a fast partitioner for many parts."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.errors import InputError
from fullgraph.partition.base import (
    Assignment,
    Imbalance,
    Threads,
    Weight,
    blocks_of_ids,
    check_parts,
    check_weights,
    needs_no_search,
    require,
    undirected_csr,
    vertex_weight,
)
from fullgraph.resources import require_threads
from fullgraph.storage import scratch
from fullgraph.values import Value


@dataclass(frozen=True)
class KaMinPar(Value):
    """Deep multilevel partitioning for the fewest arcs between parts (Gottesbueren et al., arXiv:2105.02022).

    With one thread, the same seed gives the same parts; several threads are faster and give different parts.
    """

    preset: str = "default"
    threads: Threads = 1
    imbalance: Imbalance = 0.03
    node_weight: Weight | None = None
    degree_weight: Weight = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threads(self.threads)
        check_weights(self.node_weight, self.degree_weight)

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        kaminpar = require("kaminpar")
        if self.preset not in kaminpar.context_names():
            names = ", ".join(sorted(kaminpar.context_names()))
            raise InputError(f"preset '{self.preset}' is unknown to kaminpar: choose from {names}")
        if needs_no_search(graph, parts):
            return Assignment(blocks_of_ids(graph.num_nodes, parts), parts)
        weight = vertex_weight(graph, self.node_weight, self.degree_weight, 1 << 30)
        # Create the solver first, since it limits the threads; threads started by loading the graph would remain.
        solver = kaminpar.KaMinPar(max(1, self.threads), kaminpar.context_by_name(self.preset))
        adjacency = _hand_over(kaminpar, *undirected_csr(graph), weight)
        kaminpar.reseed(seed % (1 << 31))
        part = solver.compute_partition(adjacency, parts, self.imbalance)
        return Assignment(np.asarray(part, dtype=np.int32), parts)


def _hand_over(kaminpar: Any, indptr: Array, indices: Array, weight: Array) -> Any:
    """Give the graph to KaMinPar through a ParHiP file, since its Python interface reads only files.

    ParHiP: version, N, E; for every node the byte at which its neighbours start; neighbours; node weights. All 64-bit.
    """
    version = 1  # bit 0: no edge weights; the other bits stay 0: node weights, and 64-bit numbers throughout
    head = np.array([version, len(weight), len(indices)], dtype=np.uint64)
    first = head.nbytes + 8 * len(indptr)
    try:
        with scratch(Path(tempfile.gettempdir())) as folder:
            path = folder / "graph.parhip"
            with path.open("wb") as file:
                head.tofile(file)
                (first + 8 * indptr.astype(np.uint64)).tofile(file)
                indices.astype(np.uint64).tofile(file)
                weight.astype(np.int64).tofile(file)
            return kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
    except OSError as bad:
        raise InputError(
            f"cannot write {tempfile.gettempdir()}, which kaminpar reads its graph from ({bad.strerror}): "
            "make room, or set TMPDIR to another folder"
        ) from None
