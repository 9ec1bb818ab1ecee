"""The view of a mixture: a rank updates all columns of its rows, and aggregates some columns of all rows.

Legend: N nodes, n of them this rank's own, both in blocks; D features, k of them this rank's own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.codec import quartiles
from fullgraph.exchange import Channel, RowFacts, Sides
from fullgraph.nn.view import IDENTITY, AtOnce, Features, Message, RowMap, Update
from fullgraph.ops import Structure, attend, spmm
from fullgraph.placement.holding.live import Live
from fullgraph.placement.known import with_first
from fullgraph.placement.mixture.tiles import BlockRows, LayerTiles, fewer_tiles
from fullgraph.placement.view import ChannelView
from fullgraph.plan import Route, SpreadRoute, TileBackRoute, TileRoute
from fullgraph.transport import Key, gather_rows


@dataclass(eq=False, kw_only=True)
class MixtureView(ChannelView):
    """A graph whose structure is complete on every rank; columns go to the ranks that aggregate them, and return."""

    whole: LayerTiles
    fewer: Mapping[int, LayerTiles] = field(default_factory=dict)  # layers that do not compute all rows, by number
    aggregators: tuple[int, ...]  # the ranks that have columns
    aggregate_on: torch.device

    def trimmed(self, live: Live | None) -> "MixtureView":
        if live is None:
            return self
        fewer = fewer_tiles(self.whole, live, self.transport, self.aggregate_on, "setup/live tiles")
        rows = {layer: tiles.own for layer, tiles in fewer.items()}
        return replace(self, fewer=fewer, live=rows, computed=live.computed)

    @property
    def rows(self) -> BlockRows:
        return self.whole.sources

    def tiles(self, layer: int) -> LayerTiles:
        return self.fewer.get(layer, self.whole)

    def num_targets(self, layer: int) -> int:
        return self.tiles(layer).own

    def side(self, layer: int, side: str, block: int | None, route: Route) -> Channel:
        """The channel of a block's rows; None: of all rows."""
        return self.channel(f"layer{layer}/{side}/{block}", lambda: self._build(layer, side, block, route))

    def _build(self, layer: int, side: str, block: int | None, route: Route) -> Channel:
        ours = self._grades.get(block)
        return self.wires.at(layer).build(
            name=f"{self.name}/layer{layer}/{side}" + (f"/block {block}" if block else ""),
            route=route,
            transport=self.transport,
            clock=self.clock,
            facts=RowFacts(grades=Sides(ours.halo, ours.owned) if ours and side == "rows" else ours),
        )

    def _graded(self) -> dict[int | None, Sides]:
        """For each block (None: all blocks), the grades of owned rows and of all ranks' rows, by in-degree."""
        degree, device = self.graph.arcs.indptr.diff().cpu(), self.ids.device
        degrees = gather_rows(degree, self.transport, Key(f"setup/{self.name} grades", 0))
        own, everyone = quartiles(degree, degrees), quartiles(degrees, degrees)
        grades: dict[int | None, Sides] = {None: Sides(own, everyone)}
        grades |= enumerate(map(Sides, own.split(self.rows.own), self.rows.by_block(everyone)))
        return {block: Sides(*(of.to(device) for of in both)) for block, both in grades.items()}

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> Message[Any]:
        self.clock.dropped |= row_map.p > 0  # rows are posted after the map
        return super().send(x, layer, row_map)

    def posted(self, x: Tensor, layer: int, row_map: RowMap) -> Message[Any]:
        return TileMessage(self, x, layer, row_map)

    def spread(self, x: Tensor, layer: int, side: str, readers: tuple[int, ...]) -> "Spread":
        return Spread(self.tiles(layer).sources, readers, partial(self.side, layer, side, None), x)


class Spread:
    """An exchange of rows with all ranks that read them; `wait` returns the rows by block."""

    def __init__(
        self, rows: BlockRows, readers: tuple[int, ...], channel_of: Callable[[Route], Channel], x: Tensor
    ) -> None:
        self.rows, self.route = rows, SpreadRoute(rows.rank, rows.of_ranks, readers)
        self.channel = channel_of(self.route)
        self.x, self.token = self.channel.begin(x)

    def wait(self) -> list[Tensor]:
        return self.rows.by_block(_whole(self.route, self.x, self.channel.end(self.token)))


class Tiles:
    """One block of rows: sent as columns when created, and its aggregation sent back."""

    def __init__(self, view: MixtureView, layer: int, block: int, x_nD: Tensor) -> None:
        at, width = view.tiles(layer), x_nD.shape[1]
        self.device = view.aggregate_on
        self.route, self.back = (TileRoute.of(view.transport.rank, rows.table[block], width, view.aggregators)
                                 for rows in (at.sources, at.targets))  # fmt: skip
        self.columns = view.side(layer, "columns", block, self.route)
        self.rows = view.side(layer, "rows", block, self.back.T)
        x_nD, self.token = self.columns.begin(x_nD)
        self.own, self.read = with_first(x_nD, at.targets.own[block])

    def arrive(self) -> Tensor:
        return _whole(self.route, self.read, self.columns.end(self.token)).to(self.device)

    def give_back(self, z_Nk: Tensor, *, mapped: bool = False) -> None:
        self.z_Nk, self.token = self.rows.begin(z_Nk.to(self.own.device), mapped=mapped)

    def come_back(self) -> Tensor:
        return _whole(self.back.T, self.z_Nk, self.rows.end(self.token))


class TileMessage(AtOnce):
    """Posts the tiles of map(x) when created:  Z = rows(A columns(map(x))), block by block.

    Unlike with a halo, the map comes before the exchange: a tile lacks the columns from which dropout is drawn, so all
    ranks use the owner's mask. Fresh tiles are the same either way; late ones have the mask of their step.
    """

    def __init__(self, view: MixtureView, x: Tensor, layer: int, row_map: RowMap) -> None:
        self.view, self.layer, self.grid = view, layer, view.tiles(layer).grid
        blocks = zip(_split(x, view.tiles(layer).sources.own), view.ids.split(view.rows.own), strict=True)
        self.tiles = [Tiles(view, layer, b, row_map.dense(x_b, ids)) for b, (x_b, ids) in enumerate(blocks)]

    @cached_property
    def own(self) -> Tensor:
        return _joined([tiles.own for tiles in self.tiles])

    def aggregate(self) -> Tensor:
        return self.through(lambda _, total: total)

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        beside = [None if own is None else own(tiles.own) for tiles in self.tiles]  # overlaps the exchange
        here: dict[int, Tensor] = {}
        for block, tiles in enumerate(self.tiles):
            z_Nk = None
            for source, cell in self.grid.row(block).items():
                if source not in here:
                    here[source] = self.tiles[source].arrive()
                z_Nk = spmm(cell, here[source], z_Nk)
            assert z_Nk is not None
            tiles.give_back(z_Nk, mapped=True)
        return _joined([update(b, tiles.come_back()) for b, tiles in zip(beside, self.tiles, strict=True)])

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        """Scores, two per head, are computed where rows are complete, and sent to where columns are aggregated."""
        view, among = self.view, self.view.tiles(self.layer).among
        read_nD = _joined([tiles.read for tiles in self.tiles])
        source_nH = (read_nD.unflatten(1, weight_HO.shape) * weight_HO).sum(-1)
        target_nH = torch.nn.functional.pad(target_nH, (0, 0, 0, len(source_nH) - len(target_nH)))
        scores = view.spread(torch.cat([target_nH, source_nH], 1), self.layer, "scores", view.aggregators)
        x_Nk = _joined([tiles.arrive() for tiles in self.tiles])
        targets, sources = zip(*(block.to(x_Nk.device).chunk(2, 1) for block in scores.wait()), strict=True)
        source_NH = _joined(sources)
        for tiles, pattern, target_bH in zip(self.tiles, self.grid.patterns, targets, strict=True):
            target_bH = target_bH if among is None else target_bH[among]
            tiles.give_back(_by_head(pattern, target_bH, source_NH, x_Nk, tiles.route, weight_HO.shape[1]))
        out_nHO: Tensor = _joined([tiles.come_back() for tiles in self.tiles]).unflatten(1, weight_HO.shape)
        return out_nHO


def _by_head(
    pattern: Structure, target_bH: Tensor, source_NH: Tensor, x_Nk: Tensor, route: TileRoute, width: int
) -> Tensor:
    """Attention over this rank's columns, which may begin and end inside a head."""
    first = sum(route.columns[: route.rank])
    # An empty sum, so that a rank without columns also returns gradients of the scores, in the same order.
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
    """The received tiles together with the tile of x that stays on this rank."""
    route.T.own(received).copy_(route.own(x))
    return received


def _split(x_nD: Tensor, rows: list[int]) -> tuple[Tensor, ...]:
    return x_nD.split(rows) if len(rows) > 1 else (x_nD,)


def _joined(blocks: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """All blocks as one tensor; a single block is not copied."""
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]
