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
from fullgraph.placement.counts import Counts
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.holding.ahead import halo_features, sparse_aggregation, worth_aggregating
from fullgraph.placement.holding.live import LayerRows, Live, live_rows
from fullgraph.placement.holding.locality import local_order, worth_a_look
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.partitioned.sketch import sketched
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.shard import Shard
from fullgraph.placement.view import KnownHalo, counted
from fullgraph.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned(AllLayers):
    """Nodes by part, one channel a layer for the halo."""

    channels: ClassVar[str] = "halo"

    keep_halo: bool = True  # (layer_plans.py)

    @property
    def rules(self) -> Rules:
        return Rules(sends=self.sends, precompute=self.precompute, encodes=self.encodes, keep_halo=self.keep_halo)

    def arranged(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, Live | None]:
        if self.inductive:  # a subgraph of training nodes has rows of its own, and no others
            return graph, None
        trims = any(hop is not None for hop in self.hops)
        looks = self.order == "auto" and worth_a_look(len(graph.rows.ids), self.device)
        if not trims and not looks:
            return graph, None
        if isinstance(graph.rows.x, Tensor):  # sparse rows are made ready on the host
            graph = graph.to(self.device, arcs=True, host_rows=self.host_rows)
        live = live_rows(graph, self.hops, transport) if trims else None
        order_n = local_order(graph.arcs.to(self.device)) if looks else None
        return _ordered(graph, live, order_n), live

    def view(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> PartitionedView:
        nodes, counts = counted(graph, transport, name)
        known, aggregated, halo = self._known(graph, transport, aggregation, nodes, name)
        there = graph.to(self.device, arcs=True, host_rows=self.host_rows)
        whole = LayerRows(
            targets=len(there.rows.ids),
            sources=len(there.rows.ids),
            halo_ids=there.rows.halo_ids,
            route=there.rows.route,
            matrices=self.matrices(there, transport, aggregation, name),
        )
        view = PartitionedView(
            graph=there.with_arcs(graph.arcs),  # on the device the matrices alone are kept
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            whole=whole,
            attends=aggregation == "attention",
        )
        if halo is not None:
            return replace(view, known=KnownHalo(view.x, halo.to(device=view.y.device)))
        return view.knowing(aggregated, name) if known else view

    def sketch(self, counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        return sketched(self, counts, transport, wire, aggregation)

    def _known(
        self, graph: RankGraph, transport: Transport, aggregation: str, nodes: int, name: str
    ) -> tuple[Known, Features | None, Features | None]:
        """What is known of the input; the aggregation, if the input is sparse; and the halo's rows, if those are known.

        Dense input is aggregated later, on its device.
        """
        sparse, setup = isinstance(graph.rows.x, Adjacency), f"setup/{name} features"
        halo: Features | None = None
        on_host: Matrices | None = None

        def halo_is_less() -> bool:
            nonlocal halo, on_host
            halo = halo_features(graph, transport, setup)
            assert isinstance(halo, Adjacency)
            on_host = self.matrices(graph, transport, aggregation, f"{name} ahead")
            return not worth_aggregating(graph, halo, on_host, nodes, transport, setup)

        known = self.rules.known_ahead(sparse=sparse, attends=aggregation == "attention", halo_is_less=halo_is_less)
        if known == "halo":
            return known, None, halo_features(graph, transport, setup) if halo is None else halo
        if known and sparse:
            if halo is None or on_host is None:
                halo = halo_features(graph, transport, setup)
                on_host = self.matrices(graph, transport, aggregation, f"{name} ahead")
            assert isinstance(halo, Adjacency)
            return known, sparse_aggregation(graph, halo, on_host, transport, setup), None
        return known, None, None


def _ordered(graph: RankGraph, live: Live | None, order_n: Tensor | None) -> RankGraph:
    """The rows in an order (None: as they are); rows of a lower level come first."""
    order_n = None if order_n is None else order_n.to(graph.rows.ids.device)
    if live is not None:
        level_n = live.level_n if order_n is None else live.level_n[order_n]
        by_level = torch.argsort(level_n, stable=True)
        order_n = by_level if order_n is None else order_n[by_level]
    return graph if order_n is None else graph.reordered(order_n)
