"""The view of a partitioned graph: owned rows here, halo rows by channel.

Legend: n owned rows, h halo rows, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel, Clock
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap
from fullgraph.ops import Structure, spmm
from fullgraph.placement.adjacency import Matrices
from fullgraph.placement.reduce import Reduce
from fullgraph.transport import Transport


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Rows that never change, and their aggregation, computed once."""

    x: Features
    aggregated: Features


@dataclass(eq=False)
class PartitionedView:
    """A graph whose rows lie on many ranks; `channel_of(layer)` makes the channel that brings a layer's halo."""

    ids: Tensor  # [n] global ids of owned rows
    halo_ids: Tensor  # [h]
    num_nodes: int
    matrices: Matrices
    channel_of: Callable[[int], Channel]
    transport: Transport
    clock: Clock
    known: Known | None = None
    narrow_first: bool = True
    _channels: dict[int, Channel] = field(default_factory=dict)
    _sums: int = 0

    @property
    def step(self) -> int:
        return self.clock.step

    @property
    def arcs(self) -> Structure:
        return self.matrices.arcs

    def channel(self, layer: int) -> Channel:
        if layer not in self._channels:
            self._channels[layer] = self.channel_of(layer)
        return self._channels[layer]

    def state(self) -> dict[str, Tensor]:
        channels = self._channels.items()
        return {f"layer{layer}.{name}": v for layer, channel in channels for name, v in channel.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        by_layer: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            layer, rest = name.removeprefix("layer").split(".", 1)
            by_layer.setdefault(int(layer), {})[rest] = value
        for number, part in by_layer.items():
            self.channel(number).load_state(part)

    def knows(self, x: Features) -> bool:
        return self.known is not None and x is self.known.x

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        if self.known is not None and x is self.known.x:
            return KnownMessage(self.known, self.ids, row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return HaloMessage(self, x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return HaloMessage(self, x, layer, IDENTITY).aggregate()

    def sources(self, x: Tensor, layer: int) -> Tensor:
        return HaloMessage(self, x, layer, IDENTITY).sources()

    def reduce(self, x: Tensor) -> Tensor:
        if self.transport.size == 1:
            return x
        self._sums += 1
        total: Tensor = Reduce.apply(x, self.transport, f"norm/sum {self._sums}", self.step)  # type: ignore[no-untyped-call]
        return total


class HaloMessage:
    """Posts the boundary rows of x when made; what is done before `aggregate` hides the wire."""

    def __init__(self, view: PartitionedView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.row_map = view, row_map
        self.channel = view.channel(layer)
        x, self.token = self.channel.begin(x, relu=row_map.relu, mapped=row_map.relu or row_map.p > 0)
        self.own = row_map.dense(x, view.ids)

    def aggregate(self) -> Tensor:
        inner = spmm(self.view.matrices.inner, self.own)  # hides the wire
        return spmm(self.view.matrices.outer, self._halo(), inner)

    def sources(self) -> Tensor:
        return torch.cat([self.own, self._halo()])

    def _halo(self) -> Tensor:
        # The halo rows crossed the wire activated; dropout comes after it, with the owner's own bits.
        return self.row_map.after_activation().dense(self.channel.end(self.token), self.view.halo_ids)


class KnownMessage:
    """Nothing to send: the aggregation is known, and dropout comes after it."""

    def __init__(self, known: Known, ids: Tensor, row_map: RowMap) -> None:
        self.known, self.ids, self.row_map = known, ids, row_map

    @cached_property
    def own(self) -> Features:
        return self.row_map(self.known.x, self.ids)

    def aggregate(self) -> Features:
        # Another key: one mask for both would drop a feature from a row and from its neighbours' mean at once.
        other = RowMap(relu=self.row_map.relu, p=self.row_map.p, key=self.row_map.key ^ 0x5DEECE66D)
        return other(self.known.aggregated, self.ids)

    def sources(self) -> Tensor:
        raise AssertionError("only aggregations are known ahead, not halo rows")
