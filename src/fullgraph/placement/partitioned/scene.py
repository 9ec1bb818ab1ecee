"""A rank's rows of a partitioned graph, made ready to be seen."""

from dataclasses import dataclass, field, replace
from functools import partial

from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wires
from fullgraph.placement.holding.adjacency import column_squares
from fullgraph.placement.holding.live import LayerRows, Live
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.scene import Scene


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HaloScene(Scene):
    """Rows whose neighbours on other ranks come through a halo's channels."""

    whole: LayerRows
    attends: bool
    fewer: dict[int, LayerRows] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)  # by layer of `fewer`: its rows of all ranks

    def trimmed(self, live: Live | None) -> "HaloScene":
        return (
            self
            if live is None
            else replace(self, fewer=live.layers(self.whole, self.transport), computed=live.computed)
        )

    @property
    def live(self) -> dict[int, int]:
        return {layer: rows.targets for layer, rows in self.fewer.items()}

    def grades(self, name: str) -> dict[int | None, Sides]:
        """Of layers with fewer rows, and (None) of all rows."""
        owned = self.local.grades(self.transport, f"setup/{name} grades")
        found = {}
        for layer, rows in ({None: self.whole} | self.fewer).items():
            there = replace(self.local, route=rows.route, halo_ids=rows.halo_ids)
            ours = owned[: rows.sources]
            found[layer] = Sides(ours, there.halo_of(ours, self.transport, f"setup/{name} grades {layer}"))
        return found

    def view(self, name: str, wire: Wires, clock: Clock, rules: Rules = Rules()) -> PartitionedView:
        grades = self.grades(name) if wire.graded else {}

        def channel_of(layer: int) -> Channel:
            rows = self.fewer.get(layer, self.whole)
            return wire.at(layer).build(
                name=f"{name}/layer{layer}",
                route=rows.route,
                transport=self.transport,
                clock=clock,
                facts=RowFacts(
                    ids=Sides(self.local.ids[: rows.sources], rows.halo_ids),
                    grades=grades.get(layer, grades.get(None)),
                    squares=None if self.attends else partial(column_squares, rows.matrices.outer),
                    summed=not self.attends,
                ),
            )

        return PartitionedView(
            ids=self.local.ids,
            num_nodes=self.num_nodes,
            whole=self.whole,
            fewer=self.fewer,
            channel_of=channel_of,
            transport=self.transport,
            clock=clock,
            known=self.known,
            rules=rules,
            computed=self.computed,
        )
