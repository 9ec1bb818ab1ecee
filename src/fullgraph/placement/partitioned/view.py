"""The view of a partitioned graph: owned rows here, halo rows by channel.

Legend: n owned rows that a layer reads, t of them that it computes, h halo rows, D features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap, Update, at_once
from fullgraph.ops import Structure, attend, spmm
from fullgraph.placement.channel_view import ChannelView, Known, KnownMessage
from fullgraph.placement.holding.live import LayerRows


@dataclass(eq=False, kw_only=True)
class PartitionedView(ChannelView):
    """A graph whose rows lie on many ranks; `channel_of(layer)` makes the channel that brings a layer's halo."""

    whole: LayerRows
    fewer: Mapping[int, LayerRows] = field(default_factory=dict)  # layers that do not compute all rows, by number
    channel_of: Callable[[int], Channel]
    _known: dict[int, Known] = field(default_factory=dict)

    @property
    def arcs(self) -> Structure:
        return self.whole.matrices.arcs

    def rows(self, layer: int) -> LayerRows:
        return self.fewer.get(layer, self.whole)

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        if self.known is not None and x is self.known.x:
            targets = self.rows(layer).targets
            known = self._known.setdefault(layer, self.known.first(targets))
            return KnownMessage(known, self.ids[:targets], row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return HaloMessage(self, x, layer, row_map)

    def targets(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return with_first(x, self.rows(layer).targets)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return HaloMessage(self, x, layer, IDENTITY).aggregate()

    def sources(self, x: Tensor, layer: int) -> Tensor:
        return HaloMessage(self, x, layer, IDENTITY).sources()


class HaloMessage:
    """Posts the boundary rows of x when made; what is done before `aggregate` hides the wire."""

    def __init__(self, view: PartitionedView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.row_map, self.rows = row_map, view.rows(layer)
        self.channel = view.channel(f"layer{layer}", lambda: view.channel_of(layer))
        x, self.token = self.channel.begin(x, relu=row_map.relu, mapped=row_map.relu or row_map.p > 0)
        self.own, self.read = with_first(row_map.dense(x, view.ids), self.rows.targets)

    def aggregate(self) -> Tensor:
        inner = spmm(self.rows.matrices.inner, self.read)  # hides the wire
        return spmm(self.rows.matrices.outer, self._halo(), inner)

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        return at_once(self, update, own)

    def sources(self) -> Tensor:
        return torch.cat([self.read, self._halo()])

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        source_mHO = self.sources().unflatten(1, weight_HO.shape)
        return attend(self.rows.matrices.arcs, target_nH, (source_mHO * weight_HO).sum(-1), source_mHO)

    def _halo(self) -> Tensor:
        # The halo rows crossed the wire activated; dropout comes after it, with the owner's own bits.
        return self.row_map.after_activation().dense(self.channel.end(self.token), self.rows.halo_ids)


def with_first(x_nD: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first rows of x, and x; their gradient is added to that of x, of which no copy is made."""
    if count == len(x_nD):
        return x_nD, x_nD
    first_tD, x_nD = _WithFirst.apply(x_nD, count)  # type: ignore[no-untyped-call]
    return first_tD, x_nD


class _WithFirst(torch.autograd.Function):
    """(x[:t], x);  backward: dx = d2, d1 added to its first rows in place, for who made it has no more use for it."""

    @staticmethod
    def forward(ctx, x_nD: Tensor, count: int):  # type: ignore[no-untyped-def]
        return x_nD[:count], x_nD.view_as(x_nD)

    @staticmethod
    def backward(ctx, first_tD: Tensor, grad_nD: Tensor):  # type: ignore[no-untyped-def]
        grad_nD[: len(first_tD)] += first_tD
        return grad_nD, None
