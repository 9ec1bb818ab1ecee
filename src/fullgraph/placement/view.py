"""The view of a partitioned graph: owned rows here, halo rows by channel.

Legend: n owned rows, h halo rows, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap, Update, at_once
from fullgraph.ops import Structure, attend, spmm
from fullgraph.placement.adjacency import Matrices
from fullgraph.placement.channel_view import ChannelView, KnownMessage


@dataclass(eq=False, kw_only=True)
class PartitionedView(ChannelView):
    """A graph whose rows lie on many ranks; `channel_of(layer)` makes the channel that brings a layer's halo."""

    halo_ids: Tensor  # [h]
    matrices: Matrices
    channel_of: Callable[[int], Channel]

    @property
    def arcs(self) -> Structure:
        return self.matrices.arcs

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        if self.known is not None and x is self.known.x:
            return KnownMessage(self.known, self.ids, row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return HaloMessage(self, x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return HaloMessage(self, x, layer, IDENTITY).aggregate()

    def sources(self, x: Tensor, layer: int) -> Tensor:
        return HaloMessage(self, x, layer, IDENTITY).sources()


class HaloMessage:
    """Posts the boundary rows of x when made; what is done before `aggregate` hides the wire."""

    def __init__(self, view: PartitionedView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.row_map = view, row_map
        self.channel = view.channel(f"layer{layer}", lambda: view.channel_of(layer))
        x, self.token = self.channel.begin(x, relu=row_map.relu, mapped=row_map.relu or row_map.p > 0)
        self.own = row_map.dense(x, view.ids)

    def aggregate(self) -> Tensor:
        inner = spmm(self.view.matrices.inner, self.own)  # hides the wire
        return spmm(self.view.matrices.outer, self._halo(), inner)

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        return at_once(self, update, own)

    def sources(self) -> Tensor:
        return torch.cat([self.own, self._halo()])

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        source_mHO = self.sources().unflatten(1, weight_HO.shape)
        return attend(self.view.arcs, target_nH, (source_mHO * weight_HO).sum(-1), source_mHO)

    def _halo(self) -> Tensor:
        # The halo rows crossed the wire activated; dropout comes after it, with the owner's own bits.
        return self.row_map.after_activation().dense(self.channel.end(self.token), self.view.halo_ids)
