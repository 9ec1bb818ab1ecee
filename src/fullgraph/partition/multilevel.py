"""Multilevel partitioners besides METIS: KaMinPar, fast for many parts, and Mt-KaHyPar, which minimises halo rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.errors import InputError
from fullgraph.partition.base import Assignment, Balanced, Imbalance, Threads, Weight, require, undirected_csr
from fullgraph.proc import num_cores
from fullgraph.resources import require_threads
from fullgraph.storage import scratch
from fullgraph.values import OneOf

PRESETS = ("default", "quality", "highest_quality", "deterministic", "deterministic_quality", "large_k")


@dataclass(frozen=True)
class Multilevel(Balanced):
    """A partitioner of an optional package, which has its own presets and threads."""

    package: ClassVar[str]
    needs_structure: ClassVar = True

    preset: str = ""
    threads: Threads = 0
    imbalance: Imbalance = 0.03
    node_weight: Weight | None = None
    degree_weight: Weight = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threads(self.threads)

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        require(self.package)
        return super().assign(graph, parts, seed=seed)


@dataclass(frozen=True)
class KaMinPar(Multilevel):
    """Deep multilevel partitioning for the fewest arcs between parts (Gottesbueren et al., arXiv:2105.02022).

    With one thread, the same seed gives the same parts; several threads are faster and give different parts.
    """

    package: ClassVar[str] = "kaminpar"

    preset: str = "default"
    threads: Threads = 1

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        kaminpar = require(self.package)
        if self.preset not in kaminpar.context_names():
            names = ", ".join(sorted(kaminpar.context_names()))
            raise InputError(f"preset '{self.preset}' is unknown to kaminpar: choose from {names}")
        return super().assign(graph, parts, seed=seed)

    def search(self, graph: Graph, parts: int, seed: int) -> Array:
        kaminpar = require(self.package)
        # Create the solver first, since it limits the threads; threads started by loading the graph would remain.
        solver = kaminpar.KaMinPar(max(1, self.threads), kaminpar.context_by_name(self.preset))
        adjacency = _hand_over(kaminpar, *undirected_csr(graph), self.weights(graph))
        kaminpar.reseed(seed % (1 << 31))
        part = solver.compute_partition(adjacency, parts, self.imbalance)
        return np.asarray(part, dtype=np.int32)


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


@dataclass(frozen=True)
class MtKaHyPar(Multilevel):
    """Minimises  km1 = sum over nets (parts of a net - 1) = halo rows,  with a net {u} + targets of u for each node u.

    Hypergraph partitioning (Gottesbueren et al., arXiv:2303.17679). The deterministic presets give the same parts for
    the same seed; `default` takes under half of their time and gives different parts. threads = 0: all cores.
    """

    package: ClassVar[str] = "mtkahypar"

    preset: Annotated[str, OneOf(*PRESETS)] = "deterministic"

    def search(self, graph: Graph, parts: int, seed: int) -> Array:
        mtkahypar = require(self.package)
        solver = mtkahypar.initialize(self.threads or num_cores(), False)
        mtkahypar.set_seed(seed % (1 << 31))
        context = solver.context_from_preset(getattr(mtkahypar.PresetType, self.preset.upper()))
        context.set_partitioning_parameters(parts, self.imbalance, mtkahypar.Objective.KM1)
        context.logging = False
        nets = _nets(graph)
        hypergraph = solver.create_hypergraph(
            context, graph.num_nodes, len(nets), nets, self.weights(graph).tolist(), [1] * len(nets)
        )
        part = hypergraph.partition(context).get_partition()
        return np.asarray(part, dtype=np.int32)


def _nets(graph: Graph) -> list[list[int]]:
    """Return {u} + targets of u, for every node u with a target other than itself; the package takes only lists."""
    n = graph.num_nodes
    arcs = sp.csr_array((np.ones(graph.num_arcs, dtype=np.bool_), graph.indices, graph.indptr), shape=(n, n))
    pins = (arcs.T.tocsr() + sp.eye_array(n, dtype=np.bool_, format="csr")).tocsr()
    indptr, indices = pins.indptr.tolist(), pins.indices.tolist()
    return [indices[indptr[u] : indptr[u + 1]] for u in range(n) if indptr[u + 1] - indptr[u] > 1]
