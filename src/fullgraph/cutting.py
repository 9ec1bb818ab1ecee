"""Partition a graph and write its shards, with a progress display."""

from pathlib import Path
from typing import Any

from fullgraph.data import Graph
from fullgraph.partition import PARTITIONERS, Assignment, Manifest, Partitioner, partition, write_parts
from fullgraph.report import Phases
from fullgraph.words import count

LARGE = 500_000  # arcs; METIS needs a second for this many, and blocks all other Python threads meanwhile


def cut(graph: Graph, parts: int, partitioner: Partitioner, seed: int, phases: Phases) -> Assignment:
    text = f"cutting {graph.num_nodes:,} nodes and {graph.num_arcs:,} edges into {parts} with "
    text = text + PARTITIONERS.label(partitioner) if parts > 1 else ""
    with phases("cut", text, at_once=graph.num_arcs >= LARGE):
        return partition(graph, parts, partitioner, seed)


def write_shards(folder: Path, graph: Graph, assignment: Assignment, phases: Phases, **how: Any) -> Manifest:
    """Write the folder of shards; `how` are the options of `write_parts`."""
    with phases("cut", f"writing {count(assignment.parts, 'shard')}") as progress:
        return write_parts(folder, graph, assignment, **how, progress=progress)
