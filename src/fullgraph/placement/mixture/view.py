"""The view of a mixture: rows of some nodes for the update, some columns of all nodes for the aggregation.

Legend: N nodes, n of them this rank's own, both in blocks; D features, k of them this rank's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap, Update
from fullgraph.ops import Structure, attend, spmm
from fullgraph.placement.channel_view import ChannelView, Known, KnownMessage
from fullgraph.placement.holding.adjacency import Arcs
from fullgraph.placement.mixture.grid import Grid
from fullgraph.plan import Route, SpreadRoute, TileBackRoute, TileRoute


@dataclass(frozen=True)
class BlockRows:
    """How many rows every rank has in every block. Nodes are numbered by block, by owner within."""

    rank: int
    table: tuple[tuple[int, ...], ...]  # [block][rank]

    @property
    def own(self) -> list[int]:
        """Rows of this rank, by block."""
        return [rows[self.rank] for rows in self.table]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of all ranks, by block."""
        return tuple(map(sum, self.table))

    @property
    def of_ranks(self) -> tuple[int, ...]:
        """Rows in all blocks, by rank."""
        return tuple(map(sum, zip(*self.table, strict=True)))

    def numbers(self) -> Tensor:
        """Of this rank's rows."""
        starts = [sum(self.sizes[:b]) + sum(rows[: self.rank]) for b, rows in enumerate(self.table)]
        return torch.cat([torch.arange(start, start + n) for start, n in zip(starts, self.own, strict=True)])

    def by_block(self, x_ND: Tensor) -> list[Tensor]:
        """All rows by block, where they came by rank."""
        blocks = len(self.table)
        if blocks == 1:
            return [x_ND]
        parts = x_ND.split([n for rank in zip(*self.table, strict=True) for n in rank])
        return [torch.cat(parts[b::blocks]) for b in range(blocks)]


@dataclass(eq=False, kw_only=True)
class MixtureView(ChannelView):
    """A graph whose structure is whole on every rank; `channel_of(layer, side, block, route)` makes a channel."""

    grid: Grid
    rows: BlockRows
    aggregators: tuple[int, ...]  # the ranks that have columns
    aggregate_on: torch.device
    channel_of: Callable[[int, str, int | None, Route], Channel]

    @cached_property
    def arcs(self) -> Structure:
        """Into owned rows, from all rows."""
        parts = []
        for pattern, rows in zip(self.grid.patterns, self.rows.table, strict=True):
            low = sum(rows[: self.rows.rank])
            chosen = torch.arange(low, low + rows[self.rows.rank])
            parts.append(Arcs(pattern.indptr.cpu(), pattern.indices.cpu(), None, 0).pick(chosen))
        degrees = torch.cat([part.indptr.diff() for part in parts])
        indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
        whole = Structure(indptr, torch.cat([part.indices for part in parts]), self.num_nodes)
        return whole.to(self.ids.device)

    def side(self, layer: int, side: str, block: int | None, route: Route) -> Channel:
        """The channel of a block's rows, or (None) of all."""
        return self.channel(f"layer{layer}/{side}/{block}", lambda: self.channel_of(layer, side, block, route))

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        if isinstance(self.known, Known) and x is self.known.x:
            return KnownMessage(self.known, self.ids, row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return TileMessage(self, x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return TileMessage(self, x, layer, IDENTITY).aggregate()

    def sources(self, x: Tensor, layer: int) -> Tensor:
        """Rows of all nodes, in the order of their numbers: far more than tiles, so no layer here asks for them."""
        return _joined(self.spread(x, layer, "sources", tuple(range(self.transport.size))).wait())

    def spread(self, x: Tensor, layer: int, side: str, readers: tuple[int, ...]) -> "Spread":
        return Spread(self.rows, readers, partial(self.side, layer, side, None), x)


class Spread:
    """Rows on their way to all that read them, and then there, by block."""

    def __init__(
        self, rows: BlockRows, readers: tuple[int, ...], channel_of: Callable[[Route], Channel], x: Tensor
    ) -> None:
        self.rows, self.route = rows, SpreadRoute(rows.rank, rows.of_ranks, readers)
        self.channel = channel_of(self.route)
        self.x, self.token = self.channel.begin(x)

    def wait(self) -> list[Tensor]:
        return self.rows.by_block(_whole(self.route, self.x, self.channel.end(self.token)))


class Tiles:
    """One block of rows: on its way to columns when made, and its aggregation on its way back."""

    def __init__(self, view: MixtureView, layer: int, block: int, x_nD: Tensor) -> None:
        self.device = view.aggregate_on
        self.route = TileRoute.of(view.transport.rank, view.rows.table[block], x_nD.shape[1], view.aggregators)
        self.columns = view.side(layer, "columns", block, self.route)
        self.rows = view.side(layer, "rows", block, self.route.T)
        self.own, self.token = self.columns.begin(x_nD)

    def arrive(self) -> Tensor:
        return _whole(self.route, self.own, self.columns.end(self.token)).to(self.device)

    def give_back(self, z_Nk: Tensor, *, mapped: bool = False) -> None:
        self.z_Nk, self.token = self.rows.begin(z_Nk.to(self.own.device), mapped=mapped)

    def come_back(self) -> Tensor:
        return _whole(self.route.T, self.z_Nk, self.rows.end(self.token))


class TileMessage:
    """Posts the tiles of map(x) when made:  Z = rows(A columns(map(x))), block by block.

    The map comes before the wire here, unlike where rows are a halo: a tile lacks the columns that dropout counts
    from, and its owner's mask is everyone's. Fresh tiles are the same either way; late ones have their step's mask.
    """

    def __init__(self, view: MixtureView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.layer = view, layer
        blocks = zip(_split(x, view.rows.own), view.ids.split(view.rows.own), strict=True)
        self.tiles = [Tiles(view, layer, b, row_map.dense(x_b, ids)) for b, (x_b, ids) in enumerate(blocks)]

    @cached_property
    def own(self) -> Tensor:
        return _joined([tiles.own for tiles in self.tiles])

    def aggregate(self) -> Tensor:
        return self.through(lambda _, total: total)

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        beside = [None if own is None else own(tiles.own) for tiles in self.tiles]  # hides the wire
        here: dict[int, Tensor] = {}
        for block, tiles in enumerate(self.tiles):
            z_Nk = None
            for source, cell in self.view.grid.row(block).items():
                if source not in here:
                    here[source] = self.tiles[source].arrive()
                z_Nk = spmm(cell, here[source], z_Nk)
            assert z_Nk is not None
            tiles.give_back(z_Nk, mapped=True)
        return _joined([update(b, tiles.come_back()) for b, tiles in zip(beside, self.tiles, strict=True)])

    def mapped(self, dense: Callable[[Any], Tensor]) -> "Message[Tensor]":
        raise AssertionError("rows are mapped before they cross here")

    def sources(self) -> Tensor:
        raise AssertionError("a mixture sends tiles; view.sources() brings whole rows")

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        """Scores are made where rows are whole, and go to where columns are summed, two numbers a head."""
        view, source_nH = self.view, (self.own.unflatten(1, weight_HO.shape) * weight_HO).sum(-1)
        scores = view.spread(torch.cat([target_nH, source_nH], 1), self.layer, "scores", view.aggregators)
        x_Nk = _joined([tiles.arrive() for tiles in self.tiles])
        targets, sources = zip(*(block.to(x_Nk.device).chunk(2, 1) for block in scores.wait()), strict=True)
        source_NH = _joined(sources)
        for tiles, pattern, target_bH in zip(self.tiles, view.grid.patterns, targets, strict=True):
            tiles.give_back(_by_head(pattern, target_bH, source_NH, x_Nk, tiles.route, weight_HO.shape[1]))
        out_nHO: Tensor = _joined([tiles.come_back() for tiles in self.tiles]).unflatten(1, weight_HO.shape)
        return out_nHO


def _by_head(
    pattern: Structure, target_bH: Tensor, source_NH: Tensor, x_Nk: Tensor, route: TileRoute, width: int
) -> Tensor:
    """Attention of this rank's columns, which may begin and end inside a head."""
    first = sum(route.columns[: route.rank])
    # Added to nothing: a rank without columns returns gradients of the scores, too, and in the same order.
    nothing = x_Nk[:0, :0].sum() + (target_bH[:0].sum() + source_NH[:0].sum())
    out = [nothing * x_Nk.new_zeros(len(target_bH), 0)]
    for head in range(target_bH.shape[1]):
        low, high = max(head * width - first, 0), min((head + 1) * width - first, x_Nk.shape[1])
        if low < high:
            one = slice(head, head + 1)
            x_N1O = x_Nk[:, low:high].unsqueeze(1)
            out.append(attend(pattern, target_bH[:, one], source_NH[:, one], x_N1O).squeeze(1))
    return torch.cat(out, 1)


def _whole(route: TileRoute | TileBackRoute | SpreadRoute, x: Tensor, received: Tensor) -> Tensor:
    """What peers sent, and beside it the tile of x that stays here."""
    route.T.own(received).copy_(route.own(x))
    return received


def _split(x_nD: Tensor, rows: list[int]) -> tuple[Tensor, ...]:
    return x_nD.split(rows) if len(rows) > 1 else (x_nD,)


def _joined(blocks: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """One block is itself, without a copy."""
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]
