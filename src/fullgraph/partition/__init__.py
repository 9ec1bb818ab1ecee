"""Partitioners, the quality of their assignments, and the shards that a rank opens."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fullgraph.axes import PARTITIONERS
from fullgraph.data import Graph
from fullgraph.errors import InputError, one_line
from fullgraph.own_code import own_code, told, unfit
from fullgraph.partition.base import Assignment, Partitioner, check_parts, check_seed, undirected_csr
from fullgraph.partition.cut import cut_parts, whole_part
from fullgraph.partition.fennel import Fennel
from fullgraph.partition.layout import Quality, quality
from fullgraph.partition.manifest import FileFact, GraphFacts, Manifest, facts_of, is_partition_folder, read_manifest
from fullgraph.partition.metis import Metis, MetisCut, MetisVolume, pieces_of
from fullgraph.partition.multilevel import KaMinPar, MtKaHyPar
from fullgraph.partition.part import Part, PartPairs, SparseRows
from fullgraph.partition.simple import Banded, Contiguous, Random
from fullgraph.partition.store import open_part, read_assignment, read_names, read_scaler, write_parts

AnyPartitioner = Annotated[Partitioner, PARTITIONERS]


def partition(
    graph: Graph, parts: int, method: Partitioner | str = "metis", seed: int = 0, **options: Any
) -> Assignment:
    """Assign the nodes of `graph` to `parts` parts with a partitioner, or with the named one and its options."""
    partitioner: Partitioner = PARTITIONERS.make(method, **options) if isinstance(method, str) else method
    check_parts(graph, parts)
    check_seed(seed)
    name = PARTITIONERS.label(partitioner)
    try:
        with own_code(partitioner, fix="`assign(graph, parts, *, seed)` returns a fullgraph.partition.Assignment"):
            result = partitioner.assign(graph, parts, seed=seed)
    except (InputError, MemoryError):
        raise
    except (ValueError, TypeError, RuntimeError) as bad:  # the library rejects this graph or these options
        raise InputError(
            f"partitioner '{name}' failed ({one_line(bad, 160)}): change its options, choose another, "
            "or give it more memory"
        ) from bad
    if not isinstance(result, Assignment):
        raise unfit(
            partitioner.assign,
            f"returned {told(result)}: return fullgraph.partition.Assignment(part, parts)",
            label=name,
        )
    if result.part.shape != (graph.num_nodes,) or result.parts != parts:
        problem = f"returned {result.part.shape} for {parts} parts: give each node one part"
        raise unfit(partitioner.assign, problem, f"partitioner '{name}'")
    return replace(result, method=name, seed=seed)


__all__ = [
    "PARTITIONERS",
    "AnyPartitioner",
    "Assignment",
    "Banded",
    "Contiguous",
    "Fennel",
    "FileFact",
    "GraphFacts",
    "KaMinPar",
    "Manifest",
    "Metis",
    "MetisCut",
    "MetisVolume",
    "MtKaHyPar",
    "Part",
    "PartPairs",
    "Partitioner",
    "Quality",
    "Random",
    "SparseRows",
    "cut_parts",
    "facts_of",
    "is_partition_folder",
    "open_part",
    "partition",
    "pieces_of",
    "quality",
    "read_assignment",
    "read_manifest",
    "read_names",
    "read_scaler",
    "undirected_csr",
    "whole_part",
    "write_parts",
]
