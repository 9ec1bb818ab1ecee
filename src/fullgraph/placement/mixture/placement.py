"""The mixture placement: the update by rows, the aggregation by columns (MixGCN, arXiv:2501.01951)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from fullgraph.errors import InputError
from fullgraph.ops.parallel import even_cuts
from fullgraph.placement.base import AllLayers
from fullgraph.placement.counts import Counts
from fullgraph.placement.holding.live import Live, live_rows
from fullgraph.placement.mixture.from_counts import view_of_counts
from fullgraph.placement.mixture.grid import whole_grid
from fullgraph.placement.mixture.live import LayerTiles
from fullgraph.placement.mixture.rows import BlockRows
from fullgraph.placement.mixture.view import MixtureView
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.view import counted
from fullgraph.transport import Key, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture(AllLayers):
    """H_F = columns(H_V);  Z_F = A H_F;  Z_V = rows(Z_F):  no halo, and every rank has the whole structure.

    A layer of width d moves  v = N d - sum_r n_r d_r  numbers four times a step, twice each way, where rank r has n_r
    rows and d_r columns: N d (P - 1) / P for P equal shares, N d where no rank has both. Layer 0 moves nothing where
    its aggregation is known (4 (L - 1) moves a step), and 2 v where its input is sent, for that has no gradient. d is
    the layer's input width, or its output's where that is narrower (or the input sparse) and is mapped first.
    Attention maps first, and spreads two scores a head of every node besides, to the ranks r that have columns:
    2 H sum_r (N - n_r)  numbers, once each way.

    blocks: runs of rows that cross one by one: while one is on its way, or is updated by its owner, the next is
        aggregated, as soon as the blocks that it reads are there. Neither bytes nor results change.
    roles: what every rank does: "sparse" aggregates (it has columns), "dense" updates (it has rows), "both" (if empty).
    aggregate_on: the device of every rank's sparse product; if empty, the one that its rows are on.
    """

    channels: ClassVar[str] = "tiles"

    blocks: int = 1
    roles: tuple[str, ...] = ()
    aggregate_on: tuple[str, ...] = ()

    def check(self, model: nn.Module, ranks: int) -> None:
        for name, given in (("roles", self.roles), ("devices", self.aggregate_on)):
            if len(given) not in (0, ranks):
                raise InputError(f"{len(given)} {name} for {ranks} ranks; give {name} for each rank, with commas")

    @property
    def trims(self) -> bool:
        """Only in one block: the first rows of several are not the first rows of a rank."""
        return self.blocks == 1 and not self.inductive and self.hops_trim

    def arranged(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, Live | None]:
        """By their places; where layers may leave rows out, those that more layers compute come first."""
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
        view = MixtureView(
            graph=graph.to(self.device, host_rows=self.host_rows),
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            whole=LayerTiles(rows, rows, grid.to(device) if rank in aggregators else grid),
            attends=aggregation == "attention",
            aggregators=aggregators,
            aggregate_on=device,
        )
        return self.informed(view, graph, aggregation, name)

    def aggregators(self, ranks: int) -> tuple[int, ...]:
        """The ranks that have columns."""
        return tuple(rank for rank in range(ranks) if not self.roles or self.roles[rank] != "dense")

    @property
    def alike(self) -> bool:
        return not self.roles

    def view_of_counts(self, counts: Counts, transport: Transport, aggregation: str, *, dense: bool) -> MixtureView:
        return view_of_counts(self, counts, transport, aggregation, dense=dense)

    def _block_rows(self, owned: int, transport: Transport, name: str) -> BlockRows:
        """As many rows in each of this rank's blocks as can be, and what other ranks have."""
        table = torch.zeros(transport.size, self.blocks, dtype=torch.int64)
        table[transport.rank] = torch.tensor(even_cuts(owned, self.blocks)).diff()
        table = transport.all_reduce(Key(name, 0), table).wait()
        return BlockRows(transport.rank, tuple(map(tuple, table.T.tolist())))
