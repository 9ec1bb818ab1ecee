"""A rank's view of a graph, and what the views of all placements share: channels, precomputed rows, sums over ranks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Clock, Held, HostChannel, Sides, Wire, Wires
from fullgraph.exchange.inbox import check_begun
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap
from fullgraph.ops import Adjacency, aligned_rows, host_rows
from fullgraph.placement.holding.live import Live
from fullgraph.placement.known import Known, KnownHalo, with_first
from fullgraph.placement.layer_plans import Rules, plan_layers
from fullgraph.placement.rank_graph import SPLITS, RankGraph
from fullgraph.transport import Hosts, Key, Transport

Tensors = dict[str, Tensor]
C = TypeVar("C", bound=Channel | HostChannel)
EXACT = Rules()
COLUMNS = 32  # columns of input rows on the host that are aggregated at once
ROWS = 1 << 17  # rows that are copied to the device at once for that


class Reduce(torch.autograd.Function):
    """forward: y = sum over ranks of x.  backward: the same sum, because every rank has a part of y's gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, transport: Transport, name: str, clock: Clock):  # type: ignore[no-untyped-def]
        ctx.transport, ctx.key = transport, Key(name, clock.step, "backward")
        return clock.once(lambda: transport.all_reduce(Key(name, clock.step, "forward"), x.clone()).wait())

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return ctx.transport.all_reduce(ctx.key, grad.clone()).wait(), None, None, None


@dataclass(eq=False, kw_only=True)
class Channels:
    """Channels by name, each made at its first use."""

    _channels: dict[str, Channel | HostChannel] = field(default_factory=dict, init=False)
    _loaded: dict[str, Tensors] = field(default_factory=dict, init=False)  # for channels that do not exist yet

    def channel(self, name: str, make: Callable[[], C]) -> C:
        if name not in self._channels:
            self._channels[name] = make()
            self._channels[name].load_state(self._loaded.pop(name, {}))
        return cast("C", self._channels[name])

    def held(self) -> Held:
        states: dict[str, Held] = {name: dict(state) for name, state in self._loaded.items()}
        states |= {name: channel.held() for name, channel in self._channels.items()}
        return {f"{name}.{key}": value for name, state in states.items() for key, value in state.items()}

    def load_state(self, state: Tensors) -> None:
        by_name: dict[str, Tensors] = {}
        for full, value in state.items():
            name, key = full.split(".", 1)
            by_name.setdefault(name, {})[key] = value
        for name, part in by_name.items():
            if name in self._channels:
                self._channels[name].load_state(part)
            else:
                self._loaded[name] = part


@dataclass(eq=False, kw_only=True)
class RankView(Channels):
    """A rank's graph, with counts over all ranks; each placement's view adds the rows of other ranks.

    A plain RankView is for a user's own model, which reads the edges itself.
    """

    graph: RankGraph
    transport: Transport  # the ranks that together hold every row once
    num_nodes: int
    counts: Mapping[str, int]  # by split: nodes of all ranks
    known: Known | KnownHalo | None = None
    live: Mapping[int, int] = field(default_factory=dict)  # rows of this rank, by layer that does not compute all
    computed: Mapping[int, int] = field(default_factory=dict)  # rows of all ranks, by layer that does not compute all
    hosts: Hosts | None = None  # if halo rows cross by host (plan/by_host.py)
    name: str = ""  # the prefix of its channels' names
    wires: Wires = field(default_factory=Wire)
    clock: Clock = field(default_factory=Clock)
    rules: Rules = EXACT
    _sums: int = field(default=0, init=False)

    def opened(self, name: str, wires: Wires, clock: Clock, rules: Rules = EXACT) -> Self:
        """The same view with new channels."""
        return replace(self, name=name, wires=wires, clock=clock, rules=rules)

    def trimmed(self, live: Live | None) -> Self:
        """The same view with live rows: its layers compute only the rows that are read."""
        return self

    @property
    def view(self) -> Self:
        """The view itself: `shard.train` has the rows, and `shard.train.view` is the model's interface to their
        neighbours.
        """
        return self

    @property
    def ids(self) -> Tensor:
        return self.graph.rows.ids

    @property
    def x(self) -> Features:
        return self.graph.rows.x

    @property
    def y(self) -> Tensor:
        return self.graph.rows.y

    @cached_property
    def splits(self) -> dict[str, Tensor]:
        """The owned rows of each split."""
        return {split: mask.nonzero().flatten() for split, mask in self.graph.rows.masks.items()}

    @property
    def owners(self) -> Transport:
        """The ranks that together hold every row once."""
        return self.transport

    @property
    def step(self) -> int:
        return self.clock.step

    def run(self, model: nn.Module) -> Tensor:
        """The model's output for the owned rows."""
        out: Tensor = model(self.x, self.view)
        return out

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        """The plans of a model's layers; () for a user's own model."""
        return ()

    @property
    def again(self) -> bool:
        return self.clock.again

    def twice(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return self.clock.twice()

    def reduce(self, x: Tensor) -> Tensor:
        if self.transport.size == 1:
            return x
        self._sums += not self.again
        total: Tensor = Reduce.apply(x, self.transport, f"norm/{self.name} {self._sums}", self.clock)  # type: ignore[no-untyped-call]
        return total

    def enter(self, *, training: bool, rows: frozenset[int] = frozenset()) -> None:
        raise InputError(
            "this shard was opened for fg.distribute; for one of our models give its aggregation: "
            "fg.open_shard(..., aggregation='gcn', 'mean', 'sum' or 'attention')"
        )


class ModelView(ABC):
    """The questions that the layers of a model ask a view."""

    num_nodes: int
    known: Known | KnownHalo | None
    rules: Rules
    computed: Mapping[int, int]

    def plan(self, x: Features, layer: int, shape: LayerShape) -> LayerPlan:
        known = self.known.kind if self.known is not None and x is self.known.x else ""
        return self.rules.plan(
            layer, shape, known=known, sparse=isinstance(x, Adjacency), rows=self.computed.get(layer, self.num_nodes)
        )

    @property
    @abstractmethod
    def ids(self) -> Tensor: ...

    @abstractmethod
    def num_targets(self, layer: int) -> int:
        """How many of its rows a layer computes: the first ones."""

    @abstractmethod
    def posted(self, x: Tensor, layer: int, row_map: RowMap) -> Message[Any]:
        """The message of rows that cross."""

    def targets(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return with_first(x, self.num_targets(layer))

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> Message[Any]:
        if isinstance(self.known, Known) and x is self.known.x:
            return self.known.message(self.num_targets(layer), self.ids, row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return self.posted(x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        total: Tensor = self.posted(x, layer, IDENTITY).aggregate()
        return total


@dataclass(eq=False, kw_only=True)
class ChannelView(RankView, ModelView):
    """A graph whose rows are distributed over ranks, as a model sees it."""

    attends: bool
    rows_of: frozenset[int] = field(default=frozenset(), init=False)  # layers that read single rows
    _entered: int = field(default=-1, init=False)  # the step of the last forward pass
    _grades: dict[int | None, Sides] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.wires.graded:
            self._grades = self._graded()

    @abstractmethod
    def _graded(self) -> dict[int | None, Sides]:
        """The grades of rows by layer, for wires that need them; under None, the grades of all rows."""

    def enter(self, *, training: bool, rows: frozenset[int] = frozenset()) -> None:
        """Training has one forward pass per step, in training mode; each evaluation is its own step."""
        clock = self.clock
        if clock.use != "rows":
            if clock.step <= self._entered or clock.step < 0:
                clock.tick()
        else:
            check_begun(clock.step, self._entered)
            if not training or not torch.is_grad_enabled():
                raise InputError(
                    "evaluation through the training view: call model.eval() and model(shard.full.x, shard.full.view), "
                    "or model.train() to train"
                )
        self._entered, self.rows_of = clock.step, rows

    def plans(self, model: nn.Module) -> tuple[LayerPlan, ...]:
        """The plans of a model's layers."""
        known = "" if self.known is None else self.known.kind
        return plan_layers(self.rules, model, known=known, x=self.x, nodes=self.num_nodes, computed=self.computed)

    def knowing(self, aggregated: Features | None, name: str) -> Self:
        """The same view with its precomputed input: the given aggregation, or one exact pass over dense rows."""
        x, device = self.x, self.y.device
        if aggregated is not None:
            return replace(self, known=Known(x, aggregated.to(device=device)))
        assert isinstance(x, Tensor)
        with torch.no_grad():
            if host_rows.elsewhere(x, device):
                return replace(self, known=Known(x, self._by_columns(x, f"setup/{name} features")))
            x, aggregated = aligned_rows(x), aligned_rows(self._aggregated(x, f"setup/{name} features").to(device))
        return replace(self, graph=self.graph.with_rows(x=x), known=Known(x, aggregated))

    def _aggregated(self, x: Tensor, name: str) -> Tensor:
        once = replace(self, hosts=None)  # routes by host are not worth their preparation
        return once.opened(name, Wire(), Clock()).aggregate(x, 0)

    def _by_columns(self, x_nD: Tensor, name: str) -> Tensor:
        """The aggregation of rows on the host, a few columns at a time: the device never holds all columns."""
        out_nD = torch.empty_like(x_nD, pin_memory=x_nD.is_pinned())
        for first in range(0, x_nD.shape[1], COLUMNS):
            columns = slice(first, first + COLUMNS)
            here_nk = x_nD.new_empty(out_nD[:, columns].shape, device=self.y.device)
            for rows, x_bD in host_rows.blocks_on(x_nD, here_nk.device, ROWS):
                here_nk[rows] = x_bD[:, columns]
            out_nD[:, columns] = self._aggregated(here_nk, f"{name} {first}")
        return out_nD


def counted(graph: RankGraph, transport: Transport, name: str) -> tuple[int, dict[str, int]]:
    """The number of nodes of all ranks, in total and per split."""
    rows = graph.rows
    counts = torch.tensor([len(rows.ids), *(int(rows.masks[split].sum()) for split in SPLITS)])
    nodes, *splits = transport.all_reduce(Key(f"setup/{name} counts", 0), counts).wait().tolist()
    return nodes, dict(zip(SPLITS, splits, strict=True))
