"""The partitioned placement: every rank owns some nodes, through all layers, and fetches its halo."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fullgraph.codec import quartiles
from fullgraph.exchange import Channel, Clock, Grades, Wires
from fullgraph.placement.adjacency import Matrices
from fullgraph.placement.ahead import sparse_aggregation
from fullgraph.placement.base import ByRows
from fullgraph.placement.local import LocalGraph, moved
from fullgraph.placement.scene import Scene, counted
from fullgraph.placement.view import PartitionedView
from fullgraph.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned(ByRows):
    """Nodes by part, one channel a layer for the halo."""

    channels: ClassVar[str] = "halo"

    def scene(self, local: LocalGraph, transport: Transport, aggregation: str, name: str) -> Scene:
        nodes, counts = counted(local, transport, name)
        aggregated = None
        if self.ahead(local, aggregation):
            on_host = self.matrices(local, transport, aggregation, f"{name} ahead")
            aggregated = sparse_aggregation(local, on_host, transport, f"setup/{name} features")
        there = moved(local, self.device, arcs=True)
        scene = _Scene(
            local=replace(there, arcs=local.arcs),  # on the device the matrices alone are kept
            transport=transport,
            num_nodes=nodes,
            counts=counts,
            matrices=self.matrices(there, transport, aggregation, name),
        )
        return scene.knowing(aggregated, name) if self.precompute and aggregation != "attention" else scene


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Scene(Scene):
    matrices: Matrices

    def grades(self, name: str) -> Grades:
        """By the quarter of this rank's in-degrees that a row's own is in."""
        owned = quartiles(self.local.arcs.indptr.diff()).to(self.local.ids.device)
        return Grades(owned, self.local.halo_of(owned, self.transport, f"setup/{name} grades"))

    def view(self, name: str, wire: Wires, clock: Clock, narrow_first: bool = True) -> PartitionedView:
        grades = self.grades(name) if wire.graded else None

        def channel_of(layer: int) -> Channel:
            return wire.at(layer).build(
                name=f"{name}/layer{layer}",
                route=self.local.route,
                transport=self.transport,
                clock=clock,
                grades=grades,
            )

        return PartitionedView(
            ids=self.local.ids,
            halo_ids=self.local.halo_ids,
            num_nodes=self.num_nodes,
            matrices=self.matrices,
            channel_of=channel_of,
            transport=self.transport,
            clock=clock,
            known=self.known,
            narrow_first=narrow_first,
        )
