"""What a placement is, and what all that give every rank rows of its own have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.exchange import Builder, Clock, Wire, Wires
from fullgraph.partition import GraphFacts, Part
from fullgraph.placement.counts import Counts
from fullgraph.placement.halo import halo_of
from fullgraph.placement.holding.adjacency import Matrices, build
from fullgraph.placement.holding.live import Hops, Live
from fullgraph.placement.layer_plans import Crossing, Rules
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.shard import Executor, Shard, WholeStep
from fullgraph.placement.view import ChannelView, RankView, counted
from fullgraph.transport import Transport

K = TypeVar("K", bound="Placement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(ABC):
    """How work is laid over ranks: every rank owns some rows, and a placement says how they are computed.

    inductive: train on the subgraph of training nodes, evaluate on the whole graph.
    sends: what the strategy lets layers send (layer_plans.py).
    precompute: aggregate input features once, so that the first layer has nothing to send.
    encodes: the model maps its input before its first graph layer.
    isolated: train as if there were no arcs between parts.
    hops: by graph layer, how far from a training node its output is read; the placement may leave out other rows.
    host_rows: dense input rows and their aggregation stay in the host's memory, and come to the device block by block.
    order: "auto" may put a rank's rows in an order in which neighbours are close together; "given" does not.
    seed: of what a placement draws.
    epochs: of the run, as it was planned; a placement may work otherwise in the last ones.
    """

    inductive: bool = False
    sends: Crossing = "mapped"
    precompute: bool = True
    encodes: bool = False
    isolated: bool = False
    hops: Hops = ()
    host_rows: bool = False
    order: str = "auto"
    seed: int = 0
    epochs: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def check(self, model: nn.Module, ranks: int) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuse, before any rank starts, what cannot be laid over so many."""

    @abstractmethod
    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        """A rank's share of the work, given its part of the graph."""

    def sketch(self, counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        """The same share without a number in it, from counts alone: what a step would do can be seen, and not done."""
        raise InputError(f"{type(self).__name__} has no sketch, so that its cost cannot be foretold; measure it")

    def opened(self, part: Part) -> RankGraph:
        """A part's rows in this run's number format, dense where they cross as they are."""
        graph = RankGraph.of_part(part, self.dtype)
        return graph.with_dense_rows() if self.rules.dense_input else graph

    @property
    def alike(self) -> bool:
        """Whether ranks with equal parts do equal work, and send one another equal messages at the same time."""
        return True

    def stale_steps(self, ranks: int) -> int:
        """How many steps old the oldest rows are that it reads by itself, whatever its wires do."""
        return 0

    def phases(self) -> tuple[tuple["Placement", int], ...]:
        """Placements of one way of working each, one after the other, and how many of the run's epochs each has."""
        return ((self, self.epochs),)

    def hops_between(self) -> tuple[Builder, ...]:
        """The wires that are its own, beside those of the strategy."""
        return ()

    @property
    def rules(self) -> Rules:
        """What this placement says about the plans of all layers."""
        return Rules(
            sends=self.sends, precompute=self.precompute, encodes=self.encodes, whole_rows=False, keep_halo=False
        )

    def options_for(self, kind: type[K]) -> K:
        """Another placement with the options that all of them have."""
        return kind(**{option.name: getattr(self, option.name) for option in fields(Placement)})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllLayers(Placement):
    """Every rank computes all layers of its rows."""

    channels: ClassVar[str]  # what the names of training's channels begin with

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        views = self.views(self.opened(part), transport, aggregation)
        train = views.train.trimmed(views.live).opened(self.channels, wire, self.new_clock(), self.rules)
        return views.shard(train, WholeStep(train), part.manifest.graph)

    def new_clock(self) -> Clock:
        """A clock of training."""
        return Clock(use="rows", seed=self.seed)

    def views(self, graph: RankGraph, transport: Transport, aggregation: str) -> "Views":
        """The graph that training sees, and the one that is evaluated."""
        whole, seen, live = self.graphs(graph, transport)
        full = self.view(whole, transport, aggregation, "full")
        train = full if seen is whole else self.view(seen, transport, aggregation, "train")
        return Views(train=train, full=full, live=live)

    def rows_alone(self, part: Part, transport: Transport) -> Shard:
        """The rows and edges of a rank for a model of the user's own, which needs no matrix."""
        whole, seen, _ = self.graphs(self.opened(part), transport)
        full = self._bare(whole, transport, "full")
        train = full if seen is whole else self._bare(seen, transport, "train")
        train = train.opened(self.channels, Wire(), self.new_clock())
        return Shard(train, full, WholeStep(train), transport, part.manifest.graph)

    def _bare(self, graph: RankGraph, transport: Transport, name: str) -> RankView:
        nodes, counts = counted(graph, transport, name)
        there = graph.to(self.device, host_rows=self.host_rows)
        return RankView(graph=there, transport=transport, num_nodes=nodes, counts=counts, name="eval")

    def graphs(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, RankGraph, Live | None]:
        """The whole graph, the one that training sees, and which rows its layers compute (None: all)."""
        whole, live = self.arranged(graph, transport)
        seen = whole.induced(transport) if self.inductive else whole
        return whole, seen.isolated() if self.isolated else seen, live

    def arranged(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, Live | None]:
        """The rows in the order that training likes best, and which of them each layer computes; None: all."""
        return graph, None

    @abstractmethod
    def view(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> ChannelView:
        """A view of the whole graph ("full"), or of what training sees of it ("train")."""

    def matrices(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> Matrices:
        """Those of the owned rows, over owned and halo columns."""

        def of_halo(values: Tensor) -> Tensor:
            return halo_of(graph.rows.route, values, transport, f"setup/{name} degrees")

        return build(graph.arcs, aggregation, of_halo, self.dtype)


class Views(NamedTuple):
    """A rank's views before training begins."""

    train: ChannelView
    full: ChannelView
    live: Live | None

    def shard(self, train: RankView, executor: Executor, facts: GraphFacts) -> Shard:
        """These training rows and who trains on them; evaluation sees the whole graph, exactly."""
        full = self.full.opened("eval", Wire(), Clock(), Rules(whole_rows=train.rules.whole_rows))
        return Shard(train, full, executor, full.transport, facts)
