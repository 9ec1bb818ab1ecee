"""Mt-KaHyPar, which minimises halo rows, also of directed graphs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
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
    vertex_weight,
)
from fullgraph.resources import require_threads
from fullgraph.values import OneOf, Value

PRESETS = ("default", "quality", "highest_quality", "deterministic", "deterministic_quality", "large_k")


@dataclass(frozen=True)
class MtKaHyPar(Value):
    """Minimises  km1 = sum over nets (parts of a net - 1) = halo rows,  with a net {u} + targets of u for each node u.

    Hypergraph partitioning (Gottesbueren et al., arXiv:2303.17679). The deterministic presets give the same parts for
    the same seed; `default` takes under half of their time and gives different parts. threads = 0: all cores.
    """

    preset: Annotated[str, OneOf(*PRESETS)] = "deterministic"
    threads: Threads = 0
    imbalance: Imbalance = 0.03
    node_weight: Weight | None = None
    degree_weight: Weight = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threads(self.threads)
        check_weights(self.node_weight, self.degree_weight)

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        mtkahypar = require("mtkahypar")
        if needs_no_search(graph, parts):
            return Assignment(blocks_of_ids(graph.num_nodes, parts), parts)
        solver = mtkahypar.initialize(self.threads or len(os.sched_getaffinity(0)), False)
        mtkahypar.set_seed(seed % (1 << 31))
        context = solver.context_from_preset(getattr(mtkahypar.PresetType, self.preset.upper()))
        context.set_partitioning_parameters(parts, self.imbalance, mtkahypar.Objective.KM1)
        context.logging = False
        nets = _nets(graph)
        weight = vertex_weight(graph, self.node_weight, self.degree_weight, 1 << 30)
        hypergraph = solver.create_hypergraph(
            context, graph.num_nodes, len(nets), nets, weight.tolist(), [1] * len(nets)
        )
        part = hypergraph.partition(context).get_partition()
        return Assignment(np.asarray(part, dtype=np.int32), parts)


def _nets(graph: Graph) -> list[list[int]]:
    """Return {u} + targets of u, for every node u with a target other than itself; the package takes only lists."""
    n = graph.num_nodes
    arcs = sp.csr_array((np.ones(graph.num_arcs, dtype=np.bool_), graph.indices, graph.indptr), shape=(n, n))
    pins = (arcs.T.tocsr() + sp.eye_array(n, dtype=np.bool_, format="csr")).tocsr()
    indptr, indices = pins.indptr.tolist(), pins.indices.tolist()
    return [indices[indptr[u] : indptr[u + 1]] for u in range(n) if indptr[u + 1] - indptr[u] > 1]
