"""The protocol of a placement, and the base of placements in which every rank computes all layers of its rows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import nn

from fullgraph.exchange import Clock, Wire, Wires
from fullgraph.nn.layer_plan import LayerPlan
from fullgraph.partition import GraphFacts, Part
from fullgraph.placement.holding.adjacency import ATTENDS
from fullgraph.placement.holding.live import Hops, Live, live_rows
from fullgraph.placement.known import InputRows, KnownHalo
from fullgraph.placement.layer_plans import Crossing, Rules, plan_layers
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.shard import Executor, Shard, WholeStep
from fullgraph.placement.view import ChannelView, RankView, counted
from fullgraph.transport import SingleRank, Transport

K = TypeVar("K", bound="Placement")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement(ABC):
    """How work is divided between ranks: every rank owns some rows, and the placement defines how they are computed.

    inductive: train on the subgraph of training nodes, evaluate on the whole graph.
    sends: what the strategy lets layers send (layer_plans.py).
    precompute: aggregate input features once, so that the first layer sends nothing.
    encodes: the model maps its input before its first graph layer.
    isolated: train without the arcs between parts.
    hops: for each graph layer, its output's distance from training nodes, in hops; other rows may be left out.
    host_rows: dense input rows and their aggregation stay in host memory, and are copied to the device in blocks.
    order: "auto" may reorder a rank's rows so that neighbours are close together; "given" does not.
    seed: the seed of the placement's random numbers.
    epochs: planned epochs of the run; a placement may work differently in the last ones.
    """

    no_options: ClassVar[frozenset[str]]  # fields that are not options: the run sets them
    by_relation: ClassVar[bool] = False  # whether it can aggregate by relation, for typed graphs

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
        """Refuse a model that this placement cannot distribute over this number of ranks, before any rank starts."""

    @abstractmethod
    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        """A rank's share of the work, given its part of the graph."""

    def graph_of(self, part: Part) -> RankGraph:
        """A part's graph with rows in this run's number format, made dense if input rows cross."""
        graph = RankGraph.of_part(part, self.dtype)
        return graph.with_dense_rows() if self.rules.dense_input else graph

    @property
    def rules(self) -> Rules:
        """This placement's rules for the plans of all layers."""
        return Rules(
            sends=self.sends, precompute=self.precompute, encodes=self.encodes, whole_rows=False, keep_halo=False
        )

    def plans(self, graph: RankGraph, model: nn.Module, aggregation: str) -> tuple[LayerPlan, ...]:
        """The plans of a model's layers, from the whole graph on one rank."""
        alone = SingleRank()
        graph = graph.induced(alone) if self.inductive else graph
        graph = graph.with_dense_rows() if self.rules.dense_input else graph
        nodes = len(graph.rows.ids)
        live = live_rows(graph, self.hops, alone) if self.trims else None
        given = InputRows(
            graph=graph, transport=alone, nodes=nodes, name="full", aggregation=aggregation, dtype=self.dtype
        )
        attends = aggregation in ATTENDS
        known = self.rules.known_ahead(sparse=given.sparse, attends=attends, halo_is_less=given.halo_is_less)
        computed = {} if live is None else live.computed
        return plan_layers(self.rules, model, known=known, x=graph.rows.x, nodes=nodes, computed=computed)

    @property
    def trims(self) -> bool:
        """Whether layers may leave out rows; a subgraph of training nodes has no rows to leave out."""
        return not self.inductive and self.hops_trim

    @property
    def hops_trim(self) -> bool:
        """Whether some layer's output is read only near training nodes."""
        return any(hop is not None for hop in self.hops)

    def options_for(self, kind: type[K]) -> K:
        """A placement of another kind with the same common options."""
        return kind(**{option.name: getattr(self, option.name) for option in fields(Placement)})


Placement.no_options = frozenset(option.name for option in fields(Placement))


@dataclass(frozen=True, slots=True, kw_only=True)
class AllLayers(Placement):
    """Every rank computes all layers of its rows."""

    channels: ClassVar[str]  # the prefix of the names of training's channels

    def place(self, part: Part, transport: Transport, wire: Wires, aggregation: str) -> Shard:
        views = self.views(self.graph_of(part), transport, aggregation)
        train = views.train.trimmed(views.live).opened(self.channels, wire, self.new_clock(), self.rules)
        return views.shard(train, WholeStep(train), part.manifest.graph)

    def new_clock(self) -> Clock:
        return Clock(use="rows", seed=self.seed)

    def views(self, graph: RankGraph, transport: Transport, aggregation: str) -> "Views":
        """The view of the training graph, and the view for evaluation."""
        whole, seen, live = self.graphs(graph, transport)
        full = self._informed(whole, transport, aggregation, "full")
        train = full if seen is whole else self._informed(seen, transport, aggregation, "train")
        return Views(train=train, full=full, live=live)

    def rows_alone(self, part: Part, transport: Transport) -> Shard:
        """A rank's rows and edges, without matrices, for a user's own model."""
        whole, seen, _ = self.graphs(self.graph_of(part), transport)
        full = self._bare(whole, transport, "full")
        train = full if seen is whole else self._bare(seen, transport, "train")
        train = train.opened(self.channels, Wire(), self.new_clock())
        return Shard(train, full, WholeStep(train), transport, part.manifest.graph)

    def _bare(self, graph: RankGraph, transport: Transport, name: str) -> RankView:
        nodes, counts = counted(graph, transport, name)
        there = graph.to(self.device, host_rows=self.host_rows)
        return RankView(graph=there, transport=transport, num_nodes=nodes, counts=counts, name="eval")

    def graphs(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, RankGraph, Live | None]:
        """The whole graph, the training graph, and the rows that its layers compute (None: all)."""
        whole, live = self.arranged(graph, transport)
        seen = whole.induced(transport) if self.inductive else whole
        return whole, seen.isolated() if self.isolated else seen, live

    def arranged(self, graph: RankGraph, transport: Transport) -> tuple[RankGraph, Live | None]:
        """The rows in the best order for training, and which of them each layer computes (None: all)."""
        return graph, None

    @abstractmethod
    def view(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> ChannelView:
        """A view of the whole graph ("full") or of the training graph ("train")."""

    def _informed(self, graph: RankGraph, transport: Transport, aggregation: str, name: str) -> ChannelView:
        """A view of the graph, with its precomputed input."""
        view = self.view(graph, transport, aggregation, name)
        given = InputRows(
            graph=graph, transport=transport, nodes=view.num_nodes, name=name, aggregation=aggregation,
            dtype=self.dtype,
        )  # fmt: skip
        known = self.rules.known_ahead(sparse=given.sparse, attends=view.attends, halo_is_less=given.halo_is_less)
        if known == "halo":
            return replace(view, known=KnownHalo(view.x, given.halo.to(device=view.y.device)))
        return view.knowing(given.aggregated(), name) if known else view


class Views(NamedTuple):
    """A rank's views before training begins."""

    train: ChannelView
    full: ChannelView
    live: Live | None

    def shard(self, train: RankView, executor: Executor, facts: GraphFacts) -> Shard:
        """A shard of this training view and executor; evaluation uses the whole graph with exact messages."""
        rules = Rules(whole_rows=train.rules.whole_rows, cover=train.rules.cover)
        full = self.full.opened("eval", Wire(), Clock(), rules)
        return Shard(train, full, executor, full.transport, facts)
