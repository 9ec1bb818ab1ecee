"""The mixture placement: the update by rows, the aggregation by columns (MixGCN, arXiv:2501.01951)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fullgraph.codec import quartiles
from fullgraph.exchange import Channel, Clock, Grades, Wires
from fullgraph.placement.adjacency import Matrices
from fullgraph.placement.ahead import sparse_aggregation
from fullgraph.placement.base import ByRows
from fullgraph.placement.local import LocalGraph, moved
from fullgraph.placement.scene import Scene, counted
from fullgraph.placement.tile_view import MixtureView
from fullgraph.placement.whole import whole_matrices
from fullgraph.plan import Route
from fullgraph.transport import Key, Transport, gather_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture(ByRows):
    """H_F = columns(H_V);  Z_F = A H_F;  Z_V = rows(Z_F):  no halo, and every rank has the whole structure.

    A layer of width d moves  v = N d - sum_r n_r d_r  numbers four times a step, twice each way, where rank r has n_r
    rows and d_r columns: N d (P - 1) / P for P equal shares. Layer 0 moves nothing where its aggregation is known
    (4 (L - 1) moves a step), and 2 v where its input is sent, for that has no gradient. d is the layer's input width,
    or its output's where that is narrower (or the input sparse) and is mapped first. Attention maps first, and
    spreads two scores a head of every node besides:  2 H N (P - 1)  numbers, once each way.
    """

    channels: ClassVar[str] = "tiles"

    def scene(self, local: LocalGraph, transport: Transport, aggregation: str, name: str) -> Scene:
        nodes, counts = counted(local, transport, name)
        own = quartiles(local.arcs.indptr.diff())
        rows_of = torch.zeros(transport.size, dtype=torch.int64)
        rows_of[transport.rank] = len(local.ids)
        rows = tuple(transport.all_reduce(Key(f"setup/{name} rows", 0), rows_of).wait().tolist())
        grades = Grades(own, gather_rows(own, transport, Key(f"setup/{name} grades", 0)))
        start = sum(rows[: transport.rank])
        number_n = torch.arange(start, start + len(local.ids))
        whole = whole_matrices(local, number_n, nodes, transport, aggregation, self.dtype, name).to(self.device)
        aggregated = None
        if self.ahead(local, aggregation):
            matrices = self.matrices(local, transport, aggregation, name)
            aggregated = sparse_aggregation(local, matrices, transport, f"setup/{name} features")
        scene = _Scene(
            local=moved(local, self.device),
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            whole=whole,
            rows_of=rows,
            grades=Grades(grades.owned.to(self.device), grades.halo.to(self.device)),
        )
        return scene.knowing(aggregated, name) if self.precompute and aggregation != "attention" else scene


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Scene(Scene):
    whole: Matrices  # [N, N]
    rows_of: tuple[int, ...]  # every rank
    grades: Grades  # of owned rows, and of all

    def view(self, name: str, wire: Wires, clock: Clock, narrow_first: bool = True) -> MixtureView:
        back = Grades(self.grades.halo, self.grades.owned)

        def channel_of(layer: int, side: str, route: Route) -> Channel:
            return wire.at(layer).build(
                name=f"{name}/layer{layer}/{side}",
                route=route,
                transport=self.transport,
                clock=clock,
                grades=back if side == "rows" else self.grades,
            )

        return MixtureView(
            ids=self.local.ids,
            num_nodes=self.num_nodes,
            matrix=self.whole.inner,
            all_arcs=self.whole.arcs,
            rows=self.rows_of,
            channel_of=channel_of,
            transport=self.transport,
            clock=clock,
            known=self.known,
            narrow_first=narrow_first,
        )
