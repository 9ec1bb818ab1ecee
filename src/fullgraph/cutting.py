"""Cutting a graph and writing its shards, shown while they last."""

from pathlib import Path
from typing import Any

from fullgraph.data import Graph
from fullgraph.display import count
from fullgraph.partition import PARTITIONERS, Assignment, Manifest, Partitioner, partition, write_parts
from fullgraph.report import Phases

LARGE = 500_000  # arcs: METIS needs a second for them, and lets no other thread of Python run


def cut(graph: Graph, parts: int, partitioner: Partitioner, seed: int, phases: Phases) -> Assignment:
    """Who owns which node."""
    text = f"cutting {graph.num_nodes:,} nodes and {graph.num_arcs:,} arcs into {parts} with "
    text = text + PARTITIONERS.label(partitioner) if parts > 1 else ""
    with phases("cut", text, at_once=graph.num_arcs >= LARGE):
        return partition(graph, parts, partitioner, seed)


def write_shards(folder: Path, graph: Graph, assignment: Assignment, phases: Phases, **how: Any) -> Manifest:
    """The folder of shards; `how` are the options of `write_parts`."""
    with phases("cut", f"writing {count(assignment.parts, 'shard')}") as progress:
        return write_parts(folder, graph, assignment, **how, progress=progress)
