"""The partitioned placement: every rank owns some nodes, through all layers, and fetches its halo."""

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fullgraph.codec import quartiles
from fullgraph.exchange import Channel, Clock, Grades, Wire, Wires
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.partition import Part
from fullgraph.placement.adjacency import Matrices, build
from fullgraph.placement.ahead import sparse_aggregation
from fullgraph.placement.local import SPLITS, LocalGraph, moved
from fullgraph.placement.shard import Rows, Shard, WholeStep
from fullgraph.placement.view import Known, PartitionedView
from fullgraph.transport import Key, Transport


class Placement(Protocol):
    """Lays the work over ranks."""

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned:
    """Nodes by part, one channel a layer for the halo.

    inductive: train on the subgraph of training nodes, evaluate on the whole graph.
    precompute: aggregate input features once, so that the first layer has nothing to send.
    narrow_first: send mapped rows where they are narrower, sparse features among them, which then are not aggregated
        ahead; else, as the stale systems' equations do, a layer's input.
    isolated: train as if there were no arcs between parts.
    """

    inductive: bool = False
    precompute: bool = True
    narrow_first: bool = True
    isolated: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        clock, eval_clock = Clock(), Clock()
        whole = LocalGraph.of(part, self.dtype)
        full = train = self._scene(whole, transport, aggregation, "full")
        if self.inductive or self.isolated:
            seen = whole.induced(transport) if self.inductive else whole
            train = self._scene(seen.isolated() if self.isolated else seen, transport, aggregation, "train")
        facts = part.manifest.graph
        return Shard(
            train=train.rows("halo", wire, clock, self.narrow_first),
            full=full.rows("eval", Wire(), eval_clock, True),
            executor=WholeStep(),
            transport=transport,
            clock=clock,
            eval_clock=eval_clock,
            num_classes=facts.classes,
            in_width=facts.features,
        )

    def _scene(self, local: LocalGraph, transport: Transport, aggregation: str, name: str) -> "_Scene":
        def halo_of(values: Tensor) -> Tensor:
            return local.halo_of(values, transport, f"setup/{name} degrees")

        counts = torch.tensor([len(local.ids), *(int(local.masks[split].sum()) for split in SPLITS)])
        nodes, *split_counts = transport.all_reduce(Key(f"setup/{name} counts", 0), counts).wait().tolist()
        matrices = build(local.arcs, aggregation, halo_of, self.dtype)
        known = self.precompute and aggregation != "attention"
        aggregated: Features | None = None
        if known and isinstance(local.x, Adjacency) and not self.narrow_first:
            aggregated = sparse_aggregation(local, matrices, transport, f"setup/{name} features")
        owned = quartiles(local.arcs.indptr.diff())
        halo = local.halo_of(owned, transport, f"setup/{name} grades")
        grades = Grades(owned.to(self.device), halo.to(self.device))
        local, matrices = moved(local, self.device), matrices.to(self.device)
        scene = _Scene(local, matrices, transport, nodes, dict(zip(SPLITS, split_counts, strict=True)), grades, None)
        if known and isinstance(local.x, Tensor):
            with torch.no_grad():
                aggregated = scene.view(f"setup/{name} features", Wire(), Clock()).aggregate(local.x, 0)
        if aggregated is None:
            return scene
        return replace(scene, known=Known(local.x, aggregated.to(device=self.device)))


@dataclass(frozen=True, slots=True, eq=False)
class _Scene:
    """A local graph made ready; each `rows` sees it through channels of its own."""

    local: LocalGraph
    matrices: Matrices
    transport: Transport
    num_nodes: int
    counts: dict[str, int]
    grades: Grades
    known: Known | None

    def view(self, name: str, wire: Wires, clock: Clock, narrow_first: bool = True) -> PartitionedView:
        def channel_of(layer: int) -> Channel:
            return wire.at(layer).build(
                name=f"{name}/layer{layer}",
                route=self.local.route,
                transport=self.transport,
                clock=clock,
                grades=self.grades,
            )

        local = self.local
        return PartitionedView(
            ids=local.ids,
            halo_ids=local.halo_ids,
            num_nodes=self.num_nodes,
            matrices=self.matrices,
            channel_of=channel_of,
            transport=self.transport,
            clock=clock,
            known=self.known,
            narrow_first=narrow_first,
        )

    def rows(self, name: str, wire: Wires, clock: Clock, narrow_first: bool) -> Rows:
        splits = {split: mask.nonzero().flatten() for split, mask in self.local.masks.items()}
        return Rows(self.view(name, wire, clock, narrow_first), self.local.x, self.local.y, splits, self.counts)
