"""The view of a mixture: rows of some nodes for the update, some columns of all nodes for the aggregation.

Legend: N nodes, n of them this rank's own; D features, k of them this rank's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fullgraph.exchange import Channel
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.placement.channel_view import ChannelView, KnownMessage
from fullgraph.plan import Route, TileBackRoute, TileRoute


@dataclass(eq=False, kw_only=True)
class MixtureView(ChannelView):
    """A graph whose structure is whole on every rank; `channel_of(layer, side, route)` makes the channel to a side."""

    matrix: Adjacency  # [N, N], nodes in the order of their owners
    rows: tuple[int, ...]  # owned rows of every rank
    channel_of: Callable[[int, str, Route], Channel]

    @property
    def arcs(self) -> Structure:
        raise AssertionError("attention was refused when the graph was placed")

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
        raise AssertionError("attention was refused when the graph was placed")


class TileMessage:
    """Posts the tiles of map(x) when made:  Z = rows(A columns(map(x))).

    The map comes before the wire here, unlike where rows are a halo: a tile lacks the columns that dropout counts
    from, and its owner's mask is everyone's. Fresh tiles are the same either way; late ones have their step's mask.
    """

    def __init__(self, view: MixtureView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.route = view, TileRoute.of(view.transport.rank, view.rows, x.shape[1])
        self.columns = view.side(layer, "columns", self.route)
        self.rows = view.side(layer, "rows", self.route.T)
        self.own, self.token = self.columns.begin(row_map.dense(x, view.ids))

    def aggregate(self) -> Tensor:
        x_Nk = _whole(self.route, self.own, self.columns.end(self.token))
        z_Nk, token = self.rows.begin(spmm(self.view.matrix, x_Nk))
        return _whole(self.route.T, z_Nk, self.rows.end(token))

    def sources(self) -> Tensor:
        raise AssertionError("attention was refused when the graph was placed")


def _whole(route: TileRoute | TileBackRoute, x: Tensor, received: Tensor) -> Tensor:
    """What peers sent, and beside it the tile of x that stays here."""
    route.T.own(received).copy_(route.own(x))
    return received
