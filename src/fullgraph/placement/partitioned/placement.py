"""The partitioned placement: every rank owns some nodes, through all layers, and fetches its halo."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fullgraph.codec import quartiles
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wires
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.placement.base import AllLayers
from fullgraph.placement.channel_view import KnownHalo
from fullgraph.placement.holding.adjacency import column_squares
from fullgraph.placement.holding.ahead import halo_features, sparse_aggregation, worth_aggregating
from fullgraph.placement.holding.live import LayerRows, Live, live_rows
from fullgraph.placement.holding.local import LocalGraph, moved
from fullgraph.placement.holding.locality import local_order, worth_a_look
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.scene import Scene, counted
from fullgraph.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned(AllLayers):
    """Nodes by part, one channel a layer for the halo."""

    channels: ClassVar[str] = "halo"

    keep_halo: bool = True  # input rows of the halo may be kept, where their aggregation would be larger, or of no use

    def arranged(self, local: LocalGraph, transport: Transport) -> tuple[LocalGraph, Live | None]:
        if self.inductive:  # a subgraph of training nodes has rows of its own, and no others
            return local, None
        trims = any(hop is not None for hop in self.hops)
        looks = self.order == "auto" and worth_a_look(len(local.ids), self.device)
        if not trims and not looks:
            return local, None
        if isinstance(local.x, Tensor):  # sparse rows are made ready on the host
            local = moved(local, self.device, arcs=True, host_rows=self.host_rows)
        live = live_rows(local, self.hops, transport) if trims else None
        order_n = local_order(local.arcs.to(self.device)) if looks else None
        return _ordered(local, live, order_n), live

    def scene(self, local: LocalGraph, transport: Transport, aggregation: str, name: str) -> Scene:
        nodes, counts = counted(local, transport, name)
        aggregated, halo = self._known(local, transport, aggregation, nodes, name)
        there = moved(local, self.device, arcs=True, host_rows=self.host_rows)
        whole = LayerRows(
            targets=len(there.ids),
            sources=len(there.ids),
            halo_ids=there.halo_ids,
            route=there.route,
            matrices=self.matrices(there, transport, aggregation, name),
        )
        scene = HaloScene(
            local=replace(there, arcs=local.arcs),  # on the device the matrices alone are kept
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            whole=whole,
            attends=aggregation == "attention",
        )
        if halo is not None:
            device = scene.local.y.device
            return replace(scene, known=KnownHalo(scene.local.x, halo.to(device=device)))
        return scene.knowing(aggregated, name) if self.precompute and aggregation != "attention" else scene

    def _known(
        self, local: LocalGraph, transport: Transport, aggregation: str, nodes: int, name: str
    ) -> tuple[Features | None, Features | None]:
        """Of input rows: the aggregation of sparse ones, or the halo's own; None where neither helps."""
        sparse, setup = isinstance(local.x, Adjacency), f"setup/{name} features"
        if not self.knows_sparse or not (sparse or aggregation == "attention"):
            return None, None
        if aggregation == "attention":
            return None, halo_features(local, transport, setup) if self.keep_halo else None
        halo = halo_features(local, transport, setup)
        assert isinstance(halo, Adjacency)
        on_host = self.matrices(local, transport, aggregation, f"{name} ahead")
        if self.keep_halo and not worth_aggregating(local, halo, on_host, nodes, transport, setup):
            return None, halo
        return sparse_aggregation(local, halo, on_host, transport, setup), None


def _ordered(local: LocalGraph, live: Live | None, order_n: Tensor | None) -> LocalGraph:
    """The rows in an order (None: as they are); rows of a lower level come first."""
    order_n = None if order_n is None else order_n.to(local.ids.device)
    if live is not None:
        level_n = live.level_n if order_n is None else live.level_n[order_n]
        by_level = torch.argsort(level_n, stable=True)
        order_n = by_level if order_n is None else order_n[by_level]
    return local if order_n is None else local.reordered(order_n)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HaloScene(Scene):
    """Rows whose neighbours on other ranks come through a halo's channels."""

    whole: LayerRows
    attends: bool
    fewer: dict[int, LayerRows] = field(default_factory=dict)

    def trimmed(self, live: Live | None) -> "HaloScene":
        return self if live is None else replace(self, fewer=live.layers(self.whole, self.transport))

    @property
    def live(self) -> dict[int, int]:
        return {layer: rows.targets for layer, rows in self.fewer.items()}

    def grades(self, name: str) -> dict[int | None, Sides]:
        """By the quarter of this rank's in-degrees that its own is in: of layers with fewer rows, and (None) of all."""
        owned = quartiles(self.local.arcs.indptr.diff()).to(self.local.ids.device)
        found = {}
        for layer, rows in ({None: self.whole} | self.fewer).items():
            there = replace(self.local, route=rows.route, halo_ids=rows.halo_ids)
            ours = owned[: rows.sources]
            found[layer] = Sides(ours, there.halo_of(ours, self.transport, f"setup/{name} grades {layer}"))
        return found

    def view(self, name: str, wire: Wires, clock: Clock, narrow_first: bool = True) -> PartitionedView:
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
            narrow_first=narrow_first,
        )
