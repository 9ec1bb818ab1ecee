"""The partitioned placement: every rank computes all layers of its nodes and fetches its halo."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fullgraph.placement.base import AllLayers
from fullgraph.placement.holding.adjacency import ATTENDS
from fullgraph.placement.holding.live import LayerRows, Live, live_rows
from fullgraph.placement.holding.locality import local_order, worth_a_look
from fullgraph.placement.layer_plans import Rules
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.view import counted
from fullgraph.transport import Transport, hosts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned(AllLayers):
    """A part of the nodes per rank, and a channel per layer for the halo."""

    channels: ClassVar[str] = "halo"
    by_relation: ClassVar[bool] = True
    no_options: ClassVar[frozenset[str]] = AllLayers.no_options | {"keep_halo", "cover", "by_host"}

    keep_halo: bool = True  # both: see layer_plans.py
    cover: bool = False
    by_host: bool = False  # if there are several hosts of several ranks, a row crosses once for all ranks of a host

    @property
    def rules(self) -> Rules:
        return Rules(
            sends=self.sends, precompute=self.precompute, encodes=self.encodes, keep_halo=self.keep_halo,
            cover=self.cover,
        )  # fmt: skip

    def arranged(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, Live | None]:
        if self.inductive:
            return graph, None
        looks = self.order == "auto" and worth_a_look(len(graph.rows.ids), self.device)
        if not self.trims and not looks:
            return graph, None
        if isinstance(graph.rows.x, Tensor):  # sparse rows are prepared on the host
            graph = graph.to(self.device, arcs=True, host_rows=self.host_rows)
        live = live_rows(graph, self.hops, transport) if self.trims else None
        order_n = local_order(graph.arcs.to(self.device)) if looks else None
        return _ordered(graph, live, order_n), live

    def view(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> PartitionedView:
        nodes, counts = counted(graph, transport, name)
        there = graph.to(self.device, arcs=True, host_rows=self.host_rows)
        rows = there.rows
        whole = LayerRows(
            targets=len(rows.ids),
            sources=len(rows.ids),
            halo_ids=rows.halo_ids,
            route=rows.route,
            matrices=there.matrices(aggregation, transport, self.dtype, name),
        )
        return PartitionedView(
            graph=there.with_arcs(graph.arcs),  # only the matrices are kept on the device
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            whole=whole,
            hosts=hosts_of(transport, f"setup/{name}") if self.by_host else None,
            attends=aggregation in ATTENDS,
        )


def _ordered(graph: RankGraph, live: Live | None, order_n: Tensor | None) -> RankGraph:
    """The rows in an order (None: unchanged), rows of a lower level first."""
    order_n = None if order_n is None else order_n.to(graph.rows.ids.device)
    if live is not None:
        level_n = live.level_n if order_n is None else live.level_n[order_n]
        by_level = torch.argsort(level_n, stable=True)
        order_n = by_level if order_n is None else order_n[by_level]
    return graph if order_n is None else graph.reordered(order_n)
