"""`distribute`: run a model written for PyG on one rank's rows."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fullgraph.axes import STRATEGIES
from fullgraph.copied import copied
from fullgraph.errors import InputError, one_line
from fullgraph.exchange import Adaptive, Wire, Wires
from fullgraph.exchange.inbox import NO_STEP
from fullgraph.own_code import in_users_frames, own_code, told, told_by_rank, unfit
from fullgraph.own_model.buffers import Buffers, differing
from fullgraph.own_model.check import WAY_OUT, self_check
from fullgraph.own_model.chunked import AUTO, Budget, Chunks
from fullgraph.own_model.drawing import drawing_alike
from fullgraph.own_model.earlier import EarlierGradients
from fullgraph.own_model.inputs import node_names
from fullgraph.own_model.lazy import fill_lazy, two_nodes
from fullgraph.own_model.live import LiveRows, Readings
from fullgraph.own_model.on_rows import OnRows, Returned
from fullgraph.own_model.prepare import is_message_passing, num_layers, unwrapped
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.remembered import PassedChecks
from fullgraph.own_model.tables import Tables
from fullgraph.own_model.typed.forms import learned_types, takes_dicts
from fullgraph.own_model.typed.views import TypedView
from fullgraph.placement import Partitioned, RankGraph, Shard, WholeStep
from fullgraph.placement.by_type import union_x
from fullgraph.placement.view import counted
from fullgraph.recipes import Strategy, vanilla, wires_of
from fullgraph.report.terminal import note
from fullgraph.train.sync import GradSync
from fullgraph.transport import Key, Transport, gather_rows


@in_users_frames
def distribute(
    model: nn.Module, shard: Shard, strategy: Strategy | str | None = None, *, wire: Wires | None = None,
    epochs: int = 200, seed: int = 0, check: bool = True, message_memory: str | int = AUTO,
) -> "Distributed":  # fmt: skip
    """Turn `model`, written for PyG and one process, into a module for the rows of this rank.

    model: any module called as forward(x, edge_index[, edge_weight | edge_attr]) that returns logits for every node.
    strategy: what crosses between ranks, when and in how many bits: a strategy of fullgraph, or its name; or pass
    `wire`.
    epochs: the steps of the run, for strategies that depend on them. seed: of dropout. check: in every step refuse
    operations that mix rows of one rank alone; and before the first step compare one process with simulated ranks on a
    small piece of the graph. message_memory: for the messages of one layer, such as 2GiB; a layer that needs more runs
    over chunks of rows, which the backward pass recomputes. auto: a quarter of free memory.
    Every rank starts with rank 0's weights; the state dict keeps the model's own names.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"distribute takes a torch.nn.Module, not {type(model).__name__}; pass the model itself")
    if not isinstance(shard, Shard):
        raise InputError(f"distribute takes a shard, not {type(shard).__name__}; open one with fg.open_shard")
    chunks = Chunks(Budget.of(message_memory), _told(shard.transport))
    return Distributed(model, shard, _chosen(strategy), wire, epochs=epochs, seed=seed, check=check, chunks=chunks)


def _told(transport: Transport) -> Callable[[str], None]:
    """Prints a line on rank 0."""
    return note if transport.rank == 0 else _silent


def _silent(_: str) -> None:
    """Discard a note, because another rank reports it."""


def _chosen(strategy: Strategy | str | None) -> Strategy:
    chosen = vanilla() if strategy is None else STRATEGIES.make(strategy) if isinstance(strategy, str) else strategy
    problem = STRATEGIES.problem(chosen)
    if problem:
        raise InputError(f"strategy is a {type(strategy).__name__}; give {problem}")
    assert isinstance(chosen, Strategy)
    if type(chosen.layout()) is not Partitioned:
        raise InputError(
            f"strategy {chosen.name!r} lays work over ranks as our own models allow it; for yours use one of "
            f"{STRATEGIES.those(_takes_any_model)}"
        )
    return chosen


def _takes_any_model(strategy: Strategy) -> bool:
    """Whether every rank gets all rows that its nodes read, whichever layers read them."""
    wire = strategy.wires(epochs=1, layers=1).at(0)
    return type(strategy.layout()) is Partitioned and getattr(wire, "share", 1) == 1 and not hasattr(strategy, "choose")


VALUES = Tensor, Mapping  # of a node feature or edge_index: one tensor, or dictionaries by type and relation


class Distributed(nn.Module):
    """A user's model on one rank's rows: called as before, in training over the strategy's wires, in evaluation
    exactly.
    """

    may_lack_gradients = True  # a layer that is first used in a later epoch has no gradients before

    def __init__(
        self, model: nn.Module, shard: Shard, strategy: Strategy, wire: Wires | None, *,
        epochs: int, seed: int, check: bool, chunks: Chunks,
    ) -> None:  # fmt: skip
        super().__init__()
        by_type = bool(shard.facts.types) and takes_dicts(unwrapped(model))
        fill_lazy(model, *two_nodes(shard.facts, by_type=by_type))
        self._as_written = _copies(model) if check else []
        self.on_rows = OnRows(model, seed=seed, checks=check, chunks=chunks, fields=shard.facts.field_names)
        self.module = self.on_rows.module
        self.transport, self.check = shard.transport, check
        self.passed: PassedChecks | None = None  # where a run remembers models that have passed the self-check
        self.phase: Callable[[str], AbstractContextManager[object]] = nullcontext  # displays a long operation
        self.wires = wire or wires_of(strategy, epochs=epochs, layers=num_layers(self.module))
        layout = strategy.layout()
        shard.eval_clock.tick()  # gives the messages of several models different names
        self.given, self.isolated, setup = shard, layout.isolated, f"own model {shard.eval_clock.step}"
        train = shard.train_graph.isolated() if layout.isolated else shard.train_graph
        full = _view(shard.full_graph, shard, f"{setup}/full", by_type)
        seen = full if train is shard.full_graph else _view(train, shard, f"{setup}/train", by_type)
        self.full_view = full.opened("eval", Wire(), shard.eval_clock)
        self.train_view = seen.opened("halo", self.wires, shard.clock, layout.rules)
        self._trims, self._tell = False, _told(shard.transport)  # True: the loss reads training rows alone
        self.is_open = False  # a step has begun, and its gradients are not summed yet
        self._last_step = shard.clock.step
        self._grad_sync = GradSync(shard.train.owners, may_lack=True)
        self._earlier = EarlierGradients()
        self.shard = replace(shard, train=self.train_view, full=self.full_view, executor=WholeStep(self.train_view))
        _start_alike(self.module, shard.transport, setup)
        self.tables = self._cut_tables(setup)
        if learned := learned_types(self.module):
            self._tell(f"nodes of {', '.join(learned)} have learned rows, in place of features (docs/typed.md)")

    def _cut_tables(self, setup: str) -> Tables:
        """Keep this rank's rows of weights and buffers that have a row per node."""
        tables = Tables.found(self.module, self.full_view, self.transport, f"{setup}/tables")
        if tables and not torch.equal(self.train_view.ids, self.full_view.ids):
            raise InputError(
                f"{', '.join(tables)} has a row per node, and inductive training never reaches those of other nodes; "
                "train transductively, or make rows from x"
            )
        self.on_rows.hold(tables)
        self._buffers_kept = Buffers(self.module, self.transport, list(tables)) if self.on_rows.guard.checks else None
        return tables

    @in_users_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for this rank's rows; without arguments, or with the shard, for the shard's own features.

        A trainer passes (x, view), counts the steps itself, and receives only the logits.
        """
        x, edge_index, args, kwargs = self._called(args, kwargs)
        view, in_loop = self._view_of(edge_index)
        x = view.features if x is None or not isinstance(x, VALUES) or x is self.given.full.x else x
        view.check_rows(x, "training" if view is self.train_view else "evaluation")
        if edge_index is None or not isinstance(edge_index, VALUES):
            kwargs = self.on_rows.inputs(view) | kwargs
        if self.isolated and view is self.train_view and isinstance(edge_index, VALUES):
            args, kwargs = self._inner_arcs(args, kwargs)
        if self.check:
            with self.phase("checking the model on a small piece of the graph"):
                self._check_once(view, x, args, kwargs)
        if view is self.train_view:
            if self._trims:
                self._trims = False
                self._tell("training computes all rows: no self-check has found which of them the loss reads")
            self._begin(in_loop)
        elif in_loop:
            self.given.eval_clock.tick()
        out = self._run(view, x, args, kwargs)
        if in_loop:
            return out.whole
        if out.losses and self.training:
            raise InputError(
                "the model returns a loss of its own beside the logits, which a trainer would leave out; add it in a "
                "loop of yours (fg.distribute), or return the number detached"
            )
        return view.of_union(out.logits)

    def _called(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
        """(x, edge_index, other arguments): from a trainer, with this shard or a Data, or in the form of the model's
        forward.
        """
        takes = self.on_rows.takes
        if args and not isinstance(args[0], Tensor) and hasattr(args[0], "edge_index"):
            data, more = args[0], args[1:]
            if data is self.given or data is self.shard:
                return None, None, more, kwargs
            keys = data.keys() if callable(getattr(data, "keys", None)) else vars(data)
            held = {name: value for name in keys if isinstance(value := getattr(data, name), Tensor)}
            return held.pop("x", None), held.pop("edge_index"), more, held | kwargs
        by_trainer = len(args) > 1 and not isinstance(args[1], VALUES)
        if takes.first or takes.data or by_trainer or not (args or kwargs):
            named = dict(kwargs)
            x, edge_index = (
                args[i] if len(args) > i else named.pop(n, None) for i, n in enumerate(("x", "edge_index"))
            )
            return x, edge_index, args[2:], named
        x, edge_index, named = takes.bound(self.module, args, kwargs)
        return x, edge_index, (), named

    def _run(self, view: PygView, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Returned:
        with drawing_alike(self.on_rows.seed, view.step):
            out = self.on_rows(view, x, *args, **kwargs)
        if self._buffers_kept is not None:
            self._buffers_kept.check()
        return out

    def _view_of(self, edge_index: Any) -> tuple[PygView, bool]:
        """The view that edge_index belongs to, and whether the user's own loop calls."""
        if edge_index is self.train_view or edge_index is self.given.train.view:
            if not self.training:
                raise InputError("evaluation through the training view; use fg.evaluate, or the shard's full view")
            return self.train_view, False
        if edge_index is self.full_view or edge_index is self.given.full.view:
            return self.full_view, False
        if edge_index is not None and not isinstance(edge_index, VALUES):
            raise InputError(f"edge_index is a {type(edge_index).__name__}; pass shard.edge_index, or nothing")
        view = self.train_view if self.training else self.full_view
        if edge_index is not None and not self._is_own(edge_index, view):
            name = "edge_index_dict" if isinstance(edge_index, Mapping) else "edge_index"
            raise InputError(f"{name} is not this shard's; pass shard.{name}, or call the model without it")
        return view, True

    def _is_own(self, edge_index: Any, view: PygView) -> bool:
        if not isinstance(edge_index, Mapping):
            return any(_is_same(edge_index, arcs) for arcs in (self.given.edge_index, view.edge_index))
        known = (self.given.edge_index_dict, view.marked_edge_index) if isinstance(view, TypedView) else ()
        return any(
            arcs.keys() == edge_index.keys() and all(map(_is_same, map(edge_index.get, arcs), arcs.values()))
            for arcs in known
        )

    def _begin(self, in_loop: bool) -> None:
        """Begin a step if this is a training forward."""
        clock = self.given.clock
        if not torch.is_grad_enabled():
            raise InputError("a forward in training mode without gradients; call model.eval() first, or fg.evaluate")
        if in_loop:
            if self.is_open:
                raise InputError(
                    "two forwards in one step: call fg.sync_gradients(model) after loss.backward() to end a step, and "
                    "model.eval() before evaluating"
                )
            clock.tick()
        elif clock.step < 0:
            raise InputError(NO_STEP)
        elif clock.step == self._last_step:
            raise InputError(f"two forwards in step {clock.step}: call shard.clock.tick() before each")
        if in_loop and self.tables and self.transport.size > 1:
            self._compare_weights()
        self.is_open, self._last_step = in_loop, clock.step
        if in_loop and self.transport.size > 1:
            self._earlier.begin(self.parameters())

    def _compare_weights(self) -> None:
        """Raise if a weight differs between ranks, as after clipping by a norm over all weights, tables included."""
        shared = {name: weight for name, weight in self.named_parameters() if name not in self.tables}
        for name in differing(shared, self.transport, Key("weights of the model", self.given.clock.step)):
            raise InputError(
                f"the weight {name} has other values on one rank than on another, since {', '.join(self.tables)} has a "
                "row per node: clip gradients by value, not by a norm, and use an optimizer such as Adam or SGD"
            )

    def sync_gradients(self, loss: Tensor | None = None) -> None:
        """Sum the gradients of all ranks, which ends a step; `loss` is this rank's part."""
        clock = self.given.clock
        if not self.is_open:
            raise InputError("no step was begun: call the model in training mode and loss.backward() first")
        if loss is None and isinstance(self.wires, Adaptive):
            raise InputError("this strategy follows the loss: call fg.sync_gradients(model, loss)")
        if self.transport.size > 1:
            with self._earlier.left_out(self.parameters()):
                self._grad_sync(self.parameters(), clock.step)
        if loss is not None:
            total = self.given.train.owners.all_reduce(
                Key("loss of a step", clock.step), loss.detach().double().cpu().view(1).clone()
            )
            clock.losses.append(float(total.wait()))
        self.is_open = False

    def _check_once(self, view: PygView, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the self-check on the rank with the most rows; all ranks report its result."""
        self.check, found, written = False, "", self._as_written.pop()
        step = self.given.eval_clock.step
        counts = gather_rows(torch.tensor([view.num_owned]), self.transport, Key("setup/self-check rows", step))
        if self.transport.rank == int(counts.argmax()):
            live = self._trims and view is self.train_view

            def checked() -> str:
                away = self.transport.away("checking the model on a small piece of the graph")
                with torch.enable_grad(), away, own_code(written):
                    readings, why = self_check(
                        written, view, x, (args, kwargs), seed=self.on_rows.seed, tables=self.tables.kinds, live=live
                    )
                return json.dumps([True, why, readings.total, readings.before_sum])

            try:
                facts = {"rank": self.transport.rank, "live": live, "in training": view is self.train_view}
                found = self.passed.report(checked, **facts) if self.passed else checked()
            except InputError as error:
                found = json.dumps([False, str(error), getattr(error, "trace", "")])
        letters = torch.tensor(list(found.encode()), dtype=torch.uint8)
        told = gather_rows(letters, self.transport, Key("setup/self-check", step))
        fits, text, *rest = json.loads(bytes(told.tolist()))
        if not fits:
            raise told_by_rank(text, *rest)
        if self._trims and view is self.train_view:
            self._trim(Readings(*rest), text)

    def trim(self) -> None:
        """Let layers compute only live rows in training: the loss reads logits of training nodes, and nothing else."""
        self._trims = True

    def _trim(self, readings: Readings, why: str) -> None:
        self._trims, total, before = False, readings.total, readings.before_sum
        if not why and before:
            some = f"the first {before} of {total} times that neighbours are read" if before < total else "its layers"
            why = f"a norm, sum or count over nodes needs all rows of {some}"
        if why:
            self._tell(f"training computes {'all' if before == total else 'more'} rows: {why}")
        self.on_rows.live = LiveRows.of(self.train_view, readings)

    def _inner_arcs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs without the rows of arcs from other parts."""
        source = self.given.edge_index[0]
        inner = source < self.train_view.num_owned

        def cut(value: Any) -> Any:
            if isinstance(value, Mapping):
                edges = self.given.typed.edges
                return {key: x[inner[edges[key]]] if key in edges else x for key, x in value.items()}
            return value[inner] if isinstance(value, Tensor) and value.shape[:1] == source.shape else value

        nodes = node_names(self.train_view)
        return tuple(map(cut, args)), {name: value if name in nodes else cut(value) for name, value in kwargs.items()}

    def layer_names(self) -> dict[str, nn.Module]:
        """Message-passing layers by number, from "1"; then all parts by the user's names."""
        layers = [part for part in self.module.modules() if is_message_passing(part)]
        named = {name: part for name, part in self.module.named_modules() if name}
        return {str(number): layer for number, layer in enumerate(layers, start=1)} | named

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The state dict of the user's model. With a table of nodes every rank must call it."""
        state = self.module.state_dict(*args, **kwargs)
        if not isinstance(state, dict):
            raise unfit(self.module.state_dict, f"returned {told(state)}: return a dictionary of tensors")
        return self.tables.whole(state)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(self.tables.own(state_dict), *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)


def _view(graph: RankGraph, shard: Shard, name: str, by_type: bool) -> PygView:
    nodes, counts = counted(graph, shard.transport, name)
    if not by_type:
        graph = graph.with_rows(x=union_x(graph, shard.facts.types)) if shard.facts.types else graph
        return PygView(graph=graph, transport=shard.transport, num_nodes=nodes, counts=counts)
    view = TypedView(graph=graph, transport=shard.transport, num_nodes=nodes, counts=counts, types=shard.facts.types)
    if graph is shard.train_graph:
        view._fixed["apart"] = shard.typed  # so that the model's inputs are known by their identity
    return view


def _is_same(one: Any, other: Tensor) -> bool:
    return one is other or (isinstance(one, Tensor) and torch.equal(one, other))


def _copies(model: nn.Module) -> list[nn.Module]:
    """A copy of the model before any change, inside a list: torch ignores modules in lists."""
    try:
        with own_code():
            return [copied(unwrapped(model))]
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"self-check: the model cannot be copied ({type(error).__name__}: {one_line(error)}); {WAY_OUT}"
        ) from error


@torch.no_grad()
def _start_alike(module: nn.Module, transport: Transport, setup: str) -> None:
    """Give every rank rank 0's weights and buffers."""
    if transport.size == 1:
        return
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.numel()]
    for kind in sorted({t.dtype for t in tensors}, key=str):
        same = [t for t in tensors if t.dtype == kind]
        flat = torch.cat([t.detach().reshape(-1).cpu() for t in same])
        wire = flat if transport.rank == 0 else torch.zeros_like(flat)
        whole = wire.to(torch.uint8) if kind == torch.bool else wire
        whole = transport.all_reduce(Key(f"setup/{setup}/{kind} weights", 0), whole.clone()).wait().to(kind)
        for t, part in zip(same, whole.split([t.numel() for t in same]), strict=True):
            t.copy_(part.view_as(t))


Distributed._run._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch.compiler.disable imports half of torch
