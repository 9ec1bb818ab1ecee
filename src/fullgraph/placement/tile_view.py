"""The view of a mixture: rows of some nodes for the update, some columns of all nodes for the aggregation.

Legend: N nodes, n of them this rank's own; D features, k of them this rank's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap
from fullgraph.ops import Adjacency, Structure, attend, spmm
from fullgraph.placement.channel_view import ChannelView, KnownMessage
from fullgraph.plan import Route, SpreadRoute, TileBackRoute, TileRoute


@dataclass(eq=False, kw_only=True)
class MixtureView(ChannelView):
    """A graph whose structure is whole on every rank; `channel_of(layer, side, route)` makes the channel to a side."""

    matrix: Adjacency  # [N, N], nodes in the order of their owners
    all_arcs: Structure  # the same for attention, self loops included
    rows: tuple[int, ...]  # owned rows of every rank
    channel_of: Callable[[int, str, Route], Channel]

    @cached_property
    def arcs(self) -> Structure:
        """Into owned rows, from all rows."""
        low = sum(self.rows[: self.transport.rank])
        indptr = self.all_arcs.indptr[low : low + len(self.ids) + 1]
        first, last = int(indptr[0]), int(indptr[-1])
        return Structure(indptr - first, self.all_arcs.indices[first:last], self.all_arcs.num_cols)

    def side(self, layer: int, side: str, route: Route) -> Channel:
        return self.channel(f"layer{layer}/{side}", lambda: self.channel_of(layer, side, route))

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        if self.known is not None and x is self.known.x:
            return KnownMessage(self.known, self.ids, row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return TileMessage(self, x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return TileMessage(self, x, layer, IDENTITY).aggregate()

    def sources(self, x: Tensor, layer: int) -> Tensor:
        """Rows of all nodes, in the order of their owners: far more than tiles, so no layer here asks for them."""
        return self.spread(x, layer, "sources").wait()

    def spread(self, x: Tensor, layer: int, side: str) -> "Spread":
        return Spread(SpreadRoute(self.transport.rank, self.rows), partial(self.side, layer, side), x)


class Spread:
    """Rows on their way to every rank."""

    def __init__(self, route: SpreadRoute, channel_of: Callable[[Route], Channel], x: Tensor) -> None:
        self.route, self.channel = route, channel_of(route)
        self.x, self.token = self.channel.begin(x)

    def wait(self) -> Tensor:
        return _whole(self.route, self.x, self.channel.end(self.token))


class TileMessage:
    """Posts the tiles of map(x) when made:  Z = rows(A columns(map(x))).

    The map comes before the wire here, unlike where rows are a halo: a tile lacks the columns that dropout counts
    from, and its owner's mask is everyone's. Fresh tiles are the same either way; late ones have their step's mask.
    """

    def __init__(self, view: MixtureView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.layer, self.route = view, layer, TileRoute.of(view.transport.rank, view.rows, x.shape[1])
        self.columns = view.side(layer, "columns", self.route)
        self.rows = view.side(layer, "rows", self.route.T)
        self.own, self.token = self.columns.begin(row_map.dense(x, view.ids))

    def aggregate(self) -> Tensor:
        x_Nk = _whole(self.route, self.own, self.columns.end(self.token))
        z_Nk, token = self.rows.begin(spmm(self.view.matrix, x_Nk), mapped=True)
        return _whole(self.route.T, z_Nk, self.rows.end(token))

    def sources(self) -> Tensor:
        raise AssertionError("a mixture sends tiles; view.sources() brings whole rows")

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        """Scores are made where rows are whole, and go to everyone, two numbers a head; then columns are summed."""
        source_nH = (self.own.unflatten(1, weight_HO.shape) * weight_HO).sum(-1)
        scores = self.view.spread(torch.cat([target_nH, source_nH], 1), self.layer, "scores")
        x_Nk = _whole(self.route, self.own, self.columns.end(self.token))
        target_NH, source_NH = scores.wait().chunk(2, 1)
        z_Nk, token = self.rows.begin(self._by_head(target_NH, source_NH, x_Nk, weight_HO.shape[1]))
        out_nHO: Tensor = _whole(self.route.T, z_Nk, self.rows.end(token)).unflatten(1, weight_HO.shape)
        return out_nHO

    def _by_head(self, target_NH: Tensor, source_NH: Tensor, x_Nk: Tensor, width: int) -> Tensor:
        """Attention of this rank's columns, which may begin and end inside a head."""
        first = sum(self.route.columns[: self.route.rank])
        # Added to nothing: a rank without columns returns gradients of the scores, too, and in the same order.
        out = [x_Nk[:, :0] + (target_NH[:, :1] + source_NH[:, :1]) * 0]
        for head in range(target_NH.shape[1]):
            low, high = max(head * width - first, 0), min((head + 1) * width - first, x_Nk.shape[1])
            if low < high:
                one = slice(head, head + 1)
                x_N1O = x_Nk[:, low:high].unsqueeze(1)
                out.append(attend(self.view.all_arcs, target_NH[:, one], source_NH[:, one], x_N1O).squeeze(1))
        return torch.cat(out, 1)


def _whole(route: TileRoute | TileBackRoute | SpreadRoute, x: Tensor, received: Tensor) -> Tensor:
    """What peers sent, and beside it the tile of x that stays here."""
    route.T.own(received).copy_(route.own(x))
    return received
