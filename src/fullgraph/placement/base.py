"""What a placement is, and what all that give every rank rows of its own have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from fullgraph.exchange import Clock, Wire, Wires
from fullgraph.ops import Adjacency
from fullgraph.partition import Part
from fullgraph.placement.adjacency import Matrices, build
from fullgraph.placement.live import Hops, Live
from fullgraph.placement.local import LocalGraph
from fullgraph.placement.scene import Scene
from fullgraph.placement.shard import Executor, Rows, Shard, WholeStep
from fullgraph.transport import Transport


class Placement(Protocol):
    """Lays the work over ranks."""

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRows(ABC):
    """Every rank owns some rows through all layers; how it sees its neighbours is the placement's own.

    inductive: train on the subgraph of training nodes, evaluate on the whole graph.
    precompute: aggregate input features once, so that the first layer has nothing to send.
    narrow_first: send mapped rows where they are narrower, sparse features among them, which then are not aggregated
        ahead; else, as the stale systems' equations do, a layer's input.
    isolated: train as if there were no arcs between parts.
    hops: by graph layer, how far from a training node its output is read; the placement may leave out other rows.
    host_rows: dense input rows and their aggregation stay in the host's memory, and come to the device block by block.
    order: "auto" may put a rank's rows in an order in which neighbours are close together; "given" does not.
    seed: of what a placement draws.
    """

    channels: ClassVar[str]  # what the names of training's channels begin with

    inductive: bool = False
    precompute: bool = True
    narrow_first: bool = True
    isolated: bool = False
    hops: Hops = ()
    host_rows: bool = False
    order: str = "auto"
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        clock, eval_clock = Clock(use="rows"), Clock()
        local, live = self.arranged(LocalGraph.of(part, self.dtype), transport)
        seen = whole = local
        full = train = self.scene(whole, transport, aggregation, "full")
        if self.inductive or self.isolated:
            seen = whole.induced(transport) if self.inductive else whole
            seen = seen.isolated() if self.isolated else seen
            train = self.scene(seen, transport, aggregation, "train")
        facts = part.manifest.graph
        rows = train.trimmed(live).rows(self.channels, wire, clock, self.narrow_first)
        return Shard(
            train=rows,
            full=full.rows("eval", Wire(), eval_clock, True),
            executor=self.executor(rows, replace(train, local=seen), wire, clock, aggregation),
            transport=transport,
            clock=clock,
            eval_clock=eval_clock,
            num_classes=facts.classes,
            in_width=facts.features,
            train_graph=seen,
            full_graph=whole,
        )

    def arranged(self, local: LocalGraph, transport: Transport) -> tuple[LocalGraph, Live | None]:
        """The rows in the order that training likes best, and which of them each layer computes; None: all."""
        return local, None

    def check(self, model: nn.Module, ranks: int) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuse, before any rank starts, what cannot be laid over so many."""

    def executor(self, rows: Rows, scene: Scene, wire: Wires, clock: Clock, aggregation: str) -> Executor:
        """Who trains on these rows, given the scene with its arcs still on the host."""
        return WholeStep(rows)

    @abstractmethod
    def scene(self, local: LocalGraph, transport: Transport, aggregation: str, name: str) -> Scene:
        """A graph made ready: the whole one ("full"), or what training sees of it ("train")."""

    def matrices(self, local: LocalGraph, transport: Transport, aggregation: str, name: str) -> Matrices:
        """Those of the owned rows, over owned and halo columns."""

        def halo_of(values: Tensor) -> Tensor:
            return local.halo_of(values, transport, f"setup/{name} degrees")

        return build(local.arcs, aggregation, halo_of, self.dtype)

    def ahead(self, local: LocalGraph, aggregation: str) -> bool:
        """Whether sparse input features are aggregated once."""
        return (
            self.precompute and aggregation != "attention" and not self.narrow_first and isinstance(local.x, Adjacency)
        )
