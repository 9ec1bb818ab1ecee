"""Who owns which node: partitioners, the quality of what they return, and shards a rank can open."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fullgraph.data import Graph
from fullgraph.errors import InputError, one_line
from fullgraph.partition.banded import Banded
from fullgraph.partition.base import Assignment, Partitioner, check_parts, check_seed, undirected_csr
from fullgraph.partition.contiguous import Contiguous
from fullgraph.partition.cut import cut_parts
from fullgraph.partition.kaminpar import KaMinPar
from fullgraph.partition.manifest import FileFact, GraphFacts, Manifest, is_partition_folder, read_manifest
from fullgraph.partition.metis import Metis, MetisCut, MetisVolume
from fullgraph.partition.mtkahypar import MtKaHyPar
from fullgraph.partition.part import Part, SparseRows
from fullgraph.partition.pieces import pieces_of
from fullgraph.partition.quality import Quality, quality
from fullgraph.partition.random import Random
from fullgraph.partition.store import open_part, read_assignment, write_parts

PARTITIONERS: dict[str, type[Any]] = {
    "metis": Metis,
    "metis-cut": MetisCut,
    "metis-volume": MetisVolume,
    "random": Random,
    "contiguous": Contiguous,
    "banded": Banded,
    "kaminpar": KaMinPar,
    "mtkahypar": MtKaHyPar,
}


def partition(graph: Graph, parts: int, method: str = "metis", seed: int = 0, **options: Any) -> Assignment:
    """Assign the nodes of `graph` to `parts` parts by the partitioner called `method`; `options` are its fields."""
    if method not in PARTITIONERS:
        raise InputError(f"partitioner '{method}' is unknown: choose from {', '.join(PARTITIONERS)}")
    known = [field.name for field in fields(PARTITIONERS[method])]
    for name in options:
        if name not in known:
            listed = ", ".join(known) if known else "it has none"
            raise InputError(f"partitioner '{method}' has no option '{name}': choose from {listed}")
    partitioner: Partitioner = PARTITIONERS[method](**options)
    check_parts(graph, parts)
    check_seed(seed)
    try:
        return partitioner.assign(graph, parts, seed=seed)
    except (InputError, MemoryError):
        raise
    except (ValueError, TypeError, RuntimeError) as bad:  # a partitioner's library, of a graph or options beyond it
        raise InputError(
            f"partitioner '{method}' failed ({one_line(bad, 160)}): change its options, choose another, "
            "or give it more memory"
        ) from bad


__all__ = [
    "PARTITIONERS",
    "Assignment",
    "Banded",
    "Contiguous",
    "FileFact",
    "GraphFacts",
    "KaMinPar",
    "Manifest",
    "Metis",
    "MetisCut",
    "MetisVolume",
    "MtKaHyPar",
    "Part",
    "Partitioner",
    "Quality",
    "Random",
    "SparseRows",
    "cut_parts",
    "is_partition_folder",
    "open_part",
    "partition",
    "pieces_of",
    "quality",
    "read_assignment",
    "read_manifest",
    "undirected_csr",
    "write_parts",
]
