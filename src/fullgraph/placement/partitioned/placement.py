"""The partitioned placement: every rank owns some nodes, through all layers, and fetches its halo."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fullgraph.exchange import Wires
from fullgraph.nn.layer_plan import Known
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.placement.base import AllLayers
from fullgraph.placement.channel_view import KnownHalo
from fullgraph.placement.counts import Counts
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.holding.ahead import halo_features, sparse_aggregation, worth_aggregating
from fullgraph.placement.holding.live import LayerRows, Live, live_rows
from fullgraph.placement.holding.local import LocalGraph, moved
from fullgraph.placement.holding.locality import local_order, worth_a_look
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.partitioned.scene import HaloScene
from fullgraph.placement.partitioned.sketch import sketched
from fullgraph.placement.scene import Scene, counted
from fullgraph.placement.shard import Shard
from fullgraph.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned(AllLayers):
    """Nodes by part, one channel a layer for the halo."""

    channels: ClassVar[str] = "halo"

    keep_halo: bool = True  # (layer_plans.py)

    @property
    def rules(self) -> Rules:
        return Rules(sends=self.sends, precompute=self.precompute, encodes=self.encodes, keep_halo=self.keep_halo)

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
        known, aggregated, halo = self._known(local, transport, aggregation, nodes, name)
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
        return scene.knowing(aggregated, name) if known else scene

    def sketch(self, counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        return sketched(self, counts, transport, wire, aggregation)

    def _known(
        self, local: LocalGraph, transport: Transport, aggregation: str, nodes: int, name: str
    ) -> tuple[Known, Features | None, Features | None]:
        """What is known of the input; the aggregation, if the input is sparse; and the halo's rows, if those are known.

        Dense input is aggregated later, on its device.
        """
        sparse, setup = isinstance(local.x, Adjacency), f"setup/{name} features"
        halo: Features | None = None
        on_host: Matrices | None = None

        def halo_is_less() -> bool:
            nonlocal halo, on_host
            halo = halo_features(local, transport, setup)
            assert isinstance(halo, Adjacency)
            on_host = self.matrices(local, transport, aggregation, f"{name} ahead")
            return not worth_aggregating(local, halo, on_host, nodes, transport, setup)

        known = self.rules.known_ahead(sparse=sparse, attends=aggregation == "attention", halo_is_less=halo_is_less)
        if known == "halo":
            return known, None, halo_features(local, transport, setup) if halo is None else halo
        if known and sparse:
            if halo is None or on_host is None:
                halo = halo_features(local, transport, setup)
                on_host = self.matrices(local, transport, aggregation, f"{name} ahead")
            assert isinstance(halo, Adjacency)
            return known, sparse_aggregation(local, halo, on_host, transport, setup), None
        return known, None, None


def _ordered(local: LocalGraph, live: Live | None, order_n: Tensor | None) -> LocalGraph:
    """The rows in an order (None: as they are); rows of a lower level come first."""
    order_n = None if order_n is None else order_n.to(local.ids.device)
    if live is not None:
        level_n = live.level_n if order_n is None else live.level_n[order_n]
        by_level = torch.argsort(level_n, stable=True)
        order_n = by_level if order_n is None else order_n[by_level]
    return local if order_n is None else local.reordered(order_n)
