"""The view that a block has of one part: the part's rows and the rows that they read, without other ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Clock
from fullgraph.nn.view import Message, RowMap
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.holding.live import LayerRows
from fullgraph.placement.known import Known
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.partitioned.view import SourceMessage
from fullgraph.placement.view import ModelView
from fullgraph.plan import HaloRoute


@dataclass(eq=False, kw_only=True)
class PartView(ModelView):
    """The rows of a part and the rows that they read, all held here."""

    read_ids: Tensor  # global ids of the rows that it reads, its own first
    rows: LayerRows
    clock: Clock
    num_nodes: int
    rules: Rules
    known: Known | None = None
    computed: Mapping[int, int] = field(default_factory=dict)
    again: bool = False

    @property
    def ids(self) -> Tensor:
        return self.read_ids

    @property
    def step(self) -> int:
        return self.clock.step

    def num_targets(self, layer: int) -> int:
        return self.rows.targets

    def posted(self, x: Tensor, layer: int, row_map: RowMap) -> Message[Any]:
        is_input = torch.is_grad_enabled() and not x.requires_grad
        read = row_map(x, self.ids) if is_input else row_map.dense(x, self.ids)
        return SourceMessage(self.rows, read, lambda: x.new_empty(0, x.shape[1]))

    def reduce(self, x: Tensor) -> Tensor:
        raise AssertionError("a norm over all rows reached layers in parts")


def part_rows(targets: int, ids: Tensor, matrices: Matrices) -> LayerRows:
    """The rows of a part, as the rows of a layer without a halo."""
    none = ids[:0]
    return LayerRows(
        targets=targets, sources=len(ids), halo_ids=none, route=HaloRoute(none, (0,), (0,), len(ids)), matrices=matrices
    )
