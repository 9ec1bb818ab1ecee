"""Partition a graph and write its shards, with a progress display. Large tables go through a folder of steps."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data import Graph, as_union, load_any
from fullgraph.data.loaders import tables_named
from fullgraph.data.streamed import Scratch, Streamed, Unfinished, scratch_folder, table_bytes
from fullgraph.data.tables import NamedTables
from fullgraph.errors import InputError
from fullgraph.partition import PARTITIONERS, Assignment, Fennel, Manifest, Partitioner, partition, write_parts
from fullgraph.partition.base import Balanced, needs_structure
from fullgraph.partition.manifest import check_free
from fullgraph.partition.metis import BYTES_PER_ARC
from fullgraph.report import Phases
from fullgraph.resources import free_memory
from fullgraph.words import count, size

LARGE = 500_000  # arcs; METIS needs a second for this many, and blocks all other Python threads meanwhile
# Bytes of memory per byte of the files: 10M edges between texts, in Parquet files of 292 MB, took 850 MB to cut.
MEMORY_PER_BYTE = 4


@dataclass(frozen=True)
class Source:
    """A graph to cut, and the folder of its steps if its tables stay on a disk."""

    graph: Graph
    scratch: Scratch | None = None


@contextmanager
def source(
    spec: str, out: Path, scratch: Path | None, phases: Phases, *, reverses: bool = False, whole: bool = False
) -> Iterator[Source]:
    """Yield the graph named by `spec`. Tables go through a folder of steps if they are large, or if `scratch` is given.

    whole: whether the graph must be in memory. The folder of steps is removed at the end, but not if the command was
    stopped, for then the same command goes on from it.
    """
    tables = tables_named(spec)
    if scratch is not None and (tables is None or whole or reverses):
        what = "--task link and --reverses read" if tables is not None else f"{spec} is"
        raise InputError(f"--scratch is for two tables, nodes and edges, and {what} in memory: leave it out")
    if tables is None or whole or reverses or (scratch is None and not _is_large(tables)):
        with phases("read", f"reading {spec}"):
            read = load_any(spec)
        yield Source(as_union(read, reverses=reverses))
        return
    yield from _streamed(tables, out, scratch_folder(out, scratch), phases)


def _is_large(tables: NamedTables) -> bool:
    return table_bytes(tables.names) * MEMORY_PER_BYTE > free_memory()


def _streamed(tables: NamedTables, out: Path, folder: Path, phases: Phases) -> Iterator[Source]:
    final = Path(os.path.realpath(out))
    check_free(final)
    if final in folder.parents:
        raise InputError(f"--scratch is inside {out}, which will hold the shards alone: give another folder")
    streamed = Streamed(tables, folder)
    steps = streamed.scratch
    useful = steps.begun  # whether a resume can use the folder, if the command ends here
    try:
        streamed.require_disk(out)
        useful = False  # an error is now a fault of the tables
        with phases("read", "reading the ids of nodes") as progress:
            ids = streamed.ids(progress)
        with phases("read", "reading edges") as progress:
            columns, runs = streamed.runs(ids, progress)
        with phases("read", "sorting edges") as progress:
            graph = streamed.graph(ids, columns, runs, progress)
        useful = True
        yield Source(graph, steps)
        useful = False
    except Unfinished:
        useful = True
        raise
    except InputError:
        useful = useful and not streamed.refused
        raise
    except BaseException:
        useful = True
        raise
    finally:
        if not useful:
            steps.remove()
        steps.close()


def fitting(partitioner: Partitioner, graph: Graph) -> tuple[Partitioner, str]:
    """Return the partitioner, and an empty text; or Fennel, and why: the other one needs all edges in memory."""
    need, free = BYTES_PER_ARC * graph.num_arcs, free_memory()
    if not needs_structure(partitioner) or need <= free:
        return partitioner, ""
    weights: dict[str, Any] = (
        {"node_weight": partitioner.node_weight, "degree_weight": partitioner.degree_weight}
        if isinstance(partitioner, Balanced)
        else {}
    )
    told = f"{PARTITIONERS.label(partitioner)} needs {size(need)} of memory for {graph.num_arcs:,} edges, and "
    return Fennel(
        **weights
    ), f"{told}{size(free)} are free; cut with fennel, which streams, as contiguous and random do"


def cut(
    graph: Graph, parts: int, partitioner: Partitioner, seed: int, phases: Phases, scratch: Scratch | None = None
) -> Assignment:
    """Partition the graph. scratch: keeps the assignment, so that the same command need not cut again."""
    text = f"cutting {graph.num_nodes:,} nodes and {graph.num_arcs:,} edges into {parts} with "
    text = text + PARTITIONERS.label(partitioner) if parts > 1 else ""
    with phases("cut", text, at_once=graph.num_arcs >= LARGE):
        if scratch is None:
            return partition(graph, parts, partitioner, seed)
        return _kept(graph, parts, partitioner, seed, scratch)


def _kept(graph: Graph, parts: int, partitioner: Partitioner, seed: int, scratch: Scratch) -> Assignment:
    label = PARTITIONERS.label(partitioner)

    def write(building: Path) -> None:
        found = partition(graph, parts, partitioner, seed)
        found.part.tofile(building / "part.bin")
        if found.position is not None:
            found.position.astype(np.int64).tofile(building / "position.bin")

    if not type(partitioner).__module__.startswith("fullgraph."):  # a user may have changed the code
        return partition(graph, parts, partitioner, seed)
    step = scratch.step(f"cut-{zlib.crc32(repr((label, parts, partitioner, seed)).encode())}", write)
    position = step / "position.bin"
    return Assignment(
        np.fromfile(step / "part.bin", np.int32), parts, label, seed,
        np.fromfile(position, np.int64) if position.exists() else None,
    )  # fmt: skip


def write_shards(folder: Path, graph: Graph, assignment: Assignment, phases: Phases, **how: Any) -> Manifest:
    """Write the folder of shards; `how` are the options of `write_parts`."""
    with phases("cut", f"writing {count(assignment.parts, 'shard')}") as progress:
        return write_parts(folder, graph, assignment, **how, progress=progress)
