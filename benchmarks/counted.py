"""Strategies that also write down how many rows and arcs every layer of training works on.

    fullgraph train FOLDER --strategy benchmarks/counted.py:Vanilla -o counts=EMPTY_FOLDER

Each rank counts them in the matrices that it then trains with, and writes them into a file of its own.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fullgraph.exchange import Wires
from fullgraph.partition import Part
from fullgraph.placement import Partitioned, Placement, Shard
from fullgraph.placement.known import Known
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.recipes import pipegcn, vanilla
from fullgraph.transport import Transport


@dataclass(frozen=True, kw_only=True)
class Counted(Partitioned):
    """The placement of parts, which counts what it has placed."""

    counts: str
    layers: int

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        shard = super().place(part, transport, wire, aggregation)
        view = shard.train.view
        assert isinstance(view, PartitionedView)
        found = [_work(view, layer) for layer in range(self.layers)]
        (Path(self.counts) / f"{transport.rank}.json").write_text(json.dumps(found))
        return shard


def _work(view: PartitionedView, layer: int) -> dict[str, int]:
    """What one layer's forward pass computes: rows, and arcs multiplied; none if their product is known ahead."""
    rows = view.rows(layer)
    ahead = layer == 0 and isinstance(view.known, Known)
    arcs = sum(matrix.structure.num_arcs for matrix in (rows.matrices.inner, rows.matrices.outer))
    return {"rows": rows.targets, "arcs": 0 if ahead else arcs}


def _counted(layout: Placement, **own: Any) -> Counted:
    return Counted(**{field.name: getattr(layout, field.name) for field in fields(layout)}, **own)


@dataclass(frozen=True, kw_only=True)
class Vanilla(vanilla):
    counts: str = ""
    layers: int = 3

    def layout(self) -> Placement:
        return _counted(super().layout(), counts=self.counts, layers=self.layers)


@dataclass(frozen=True, kw_only=True)
class PipeGCN(pipegcn):
    counts: str = ""
    layers: int = 3

    def layout(self) -> Placement:
        return _counted(super().layout(), counts=self.counts, layers=self.layers)
