"""Strategies that also record how many rows and edges every layer computes in training.

    fullgraph train FOLDER --strategy benchmarks/counted.py:Vanilla -o counts=EMPTY_FOLDER

Each rank counts them in the matrices of its training, and writes them to a separate file.
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
    """The placement of parts, which also counts rows and edges."""

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
    """Count the rows and edges of a layer's forward pass; no edges if their product is computed ahead."""
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
