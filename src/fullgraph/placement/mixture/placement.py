"""The mixture placement: the update by rows, the aggregation by columns (MixGCN, arXiv:2501.01951)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from fullgraph.errors import InputError
from fullgraph.ops.parallel import even_cuts
from fullgraph.placement.base import AllLayers
from fullgraph.placement.holding.live import Live, live_rows
from fullgraph.placement.mixture.tiles import BlockRows, LayerTiles, whole_grid
from fullgraph.placement.mixture.view import MixtureView
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.view import counted
from fullgraph.transport import Key, Transport, rank_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture(AllLayers):
    """H_F = columns(H_V);  Z_F = A H_F;  Z_V = rows(Z_F):  no halo, and every rank has the whole structure.

    A layer of width d moves  v = N d - sum_r n_r d_r  numbers four times per step, twice in each direction; rank r has
    n_r rows and d_r columns. v = N d (P - 1) / P for P equal shares, and N d if no rank has both rows and columns.
    Layer 0 moves nothing if its aggregation is known (4 (L - 1) moves per step), and 2 v if its input is sent, because
    the input has no gradient. d is the layer's input width, or its output width if that is narrower (or the input is
    sparse) and the layer maps first. Attention maps first. It also sends two scores per head of every node to the ranks
    r with columns:  2 H sum_r (N - n_r)  numbers, once in each direction.

    blocks: row ranges that cross one after another: while one crosses, or is updated by its owner, the next one is
        aggregated, as soon as the blocks that it reads have arrived. Bytes and results do not change.
    roles: the work of every rank: "sparse" aggregates (it has columns), "dense" updates (it has rows), "both" (if
        empty).
    aggregate_on: the device of every rank's sparse product; if empty, the device of its rows.
    """

    channels: ClassVar[str] = "tiles"
    no_options: ClassVar[frozenset[str]] = AllLayers.no_options | {"blocks", "roles", "aggregate_on"}

    blocks: int = 1
    roles: tuple[str, ...] = ()
    aggregate_on: tuple[str, ...] = ()

    def check(self, model: nn.Module, ranks: int) -> None:
        for name, given in (("roles", self.roles), ("devices", self.aggregate_on)):
            if len(given) not in (0, ranks):
                raise InputError(f"{len(given)} {name} for {ranks} ranks; give {name} for each rank, with commas")

    @property
    def trims(self) -> bool:
        """Only with one block: the first rows of several blocks are not the first rows of a rank."""
        return self.blocks == 1 and not self.inductive and self.hops_trim

    def arranged(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, Live | None]:
        """Order rows by `position`; with live rows, by distance to a training node first."""
        graph = graph.ordered().with_rows(position=None)
        if not self.trims:
            return graph, None
        live = live_rows(graph, self.hops, transport)
        if live is None:
            return graph, None
        order_n = torch.argsort(live.level_n, stable=True)
        return graph.reordered(order_n), replace(live, level_n=live.level_n[order_n])

    def view(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> MixtureView:
        rank = transport.rank
        aggregators = self.aggregators(transport.size)
        owned = len(graph.rows.ids)
        if self.roles and self.roles[rank] == "sparse" and owned:
            raise InputError(
                f"rank {rank} is sparse, yet owns {owned} nodes of these shards; train from the graph itself"
            )
        device = torch.device(self.aggregate_on[rank]) if self.aggregate_on else self.device
        nodes, counts = counted(graph, transport, name)
        if self.blocks > nodes:
            raise InputError(f"blocks={self.blocks}: more than the {nodes} nodes; choose fewer")
        rows = self._block_rows(owned, transport, f"setup/{name} rows")
        grid = whole_grid(graph, rows.numbers(), rows.sizes, transport, aggregation, self.dtype, name)
        return MixtureView(
            graph=graph.to(self.device, host_rows=self.host_rows),
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            whole=LayerTiles(rows, rows, grid.to(device) if rank in aggregators else grid),
            attends=aggregation == "attention",
            aggregators=aggregators,
            aggregate_on=device,
        )

    def aggregators(self, ranks: int) -> tuple[int, ...]:
        """The ranks that have columns."""
        return tuple(rank for rank in range(ranks) if not self.roles or self.roles[rank] != "dense")

    def _block_rows(self, owned: int, transport: Transport, name: str) -> BlockRows:
        """Split this rank's rows into blocks as evenly as possible; gather every rank's block sizes."""
        sizes = torch.tensor(even_cuts(owned, self.blocks)).diff()
        table = rank_table(transport, Key(name, 0), sizes, torch.int64)
        return BlockRows(transport.rank, tuple(map(tuple, table.T.tolist())))
