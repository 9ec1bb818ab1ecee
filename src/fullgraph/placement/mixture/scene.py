"""A rank's rows of a mixture, made ready to be seen."""

from dataclasses import dataclass, field, replace

import torch

from fullgraph.codec import quartiles
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wires
from fullgraph.placement.holding.live import Live
from fullgraph.placement.mixture.live import LayerTiles, fewer_tiles
from fullgraph.placement.mixture.rows import BlockRows
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.mixture.view import MixtureView
from fullgraph.placement.scene import Scene
from fullgraph.plan import Route
from fullgraph.transport import Key, gather_rows


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TileScene(Scene):
    """Rows whose columns go to the ranks that aggregate them, and come back."""

    whole: LayerTiles
    attends: bool
    fewer: dict[int, LayerTiles] = field(default_factory=dict)
    aggregators: tuple[int, ...]
    aggregate_on: torch.device

    @property
    def block_rows(self) -> BlockRows:
        return self.whole.sources

    def trimmed(self, live: Live | None) -> "TileScene":
        """Of one block: the first rows of several are not the first rows of a rank."""
        if live is None or len(self.block_rows.table) > 1:
            return self
        fewer = fewer_tiles(self.whole, live, self.transport, self.aggregate_on, "setup/live tiles")
        return replace(self, fewer=fewer)

    @property
    def computed(self) -> dict[int, int]:
        """By layer of `fewer`: its rows of all ranks."""
        return {layer: sum(tiles.targets.sizes) for layer, tiles in self.fewer.items()}

    @property
    def live(self) -> dict[int, int]:
        return {layer: tiles.own for layer, tiles in self.fewer.items()}

    def grades(self, name: str) -> dict[int | None, Sides]:
        """By in-degree among all nodes: of owned rows and of all ranks', by block; None: those of all blocks."""
        degree, device = self.local.arcs.indptr.diff().cpu(), self.local.ids.device
        degrees = gather_rows(degree, self.transport, Key(f"setup/{name} grades", 0))
        own, everyone = quartiles(degree, degrees), quartiles(degrees, degrees)
        grades: dict[int | None, Sides] = {None: Sides(own, everyone)}
        grades |= enumerate(map(Sides, own.split(self.block_rows.own), self.block_rows.by_block(everyone)))
        return {block: Sides(*(of.to(device) for of in both)) for block, both in grades.items()}

    def view(self, name: str, wire: Wires, clock: Clock, rules: Rules = Rules()) -> MixtureView:
        grades = self.grades(name) if wire.graded else {}

        def channel_of(layer: int, side: str, block: int | None, route: Route) -> Channel:
            ours = grades.get(block)
            return wire.at(layer).build(
                name=f"{name}/layer{layer}/{side}" + (f"/block {block}" if block else ""),
                route=route,
                transport=self.transport,
                clock=clock,
                facts=RowFacts(grades=Sides(ours.halo, ours.owned) if ours and side == "rows" else ours),
            )

        return MixtureView(
            ids=self.local.ids,
            num_nodes=self.num_nodes,
            whole=self.whole,
            fewer=self.fewer,
            aggregators=self.aggregators,
            aggregate_on=self.aggregate_on,
            channel_of=channel_of,
            transport=self.transport,
            clock=clock,
            known=self.known,
            rules=rules,
            computed=self.computed,
        )
