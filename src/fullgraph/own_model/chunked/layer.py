"""Run a layer's `propagate` and `edge_updater` over chunks of target rows if its messages would take too much
memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fullgraph import words
from fullgraph.errors import InputError, one_line
from fullgraph.own_model.chunked.arcs import ByTarget
from fullgraph.own_model.chunked.arguments import Arguments
from fullgraph.own_model.chunked.budget import Budget, Limit
from fullgraph.own_model.chunked.steps import InChunks, Steps
from fullgraph.own_model.chunked.trial import ARCS, tried
from fullgraph.own_model.forward import Forward, NotInChunks, running
from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.guard import Guard
from fullgraph.own_model.rows.spaces import Ends, Rows, Space, mark, rows_of

SURELY_SMALL = 1000  # times the widest argument: a layer with smaller messages needs no trial
GROWN = 1.25  # times the edges of a trial: with more edges, the trial is repeated
HOOKS = ("_propagate", "_message", "_aggregate", "_edge_update")
STEPS = {"propagate": ("message", "aggregate"), "edge_updater": ("edge_update",)}
ASKED = "return_attention_weights"  # option of a layer's forward; PyG's layers pass it on in an attribute


@dataclass
class Known:
    """The findings of a trial about one function of a layer."""

    edges: int  # edges at the time of the trial
    most_arcs: int | None = None  # per chunk; None: no chunks
    weights: list[Tensor] = field(default_factory=list)


class Chunks:
    """Shared by the layers of one model: the budget, the orders of edges, and the function that reports notes."""

    def __init__(self, budget: Budget, note: Callable[[str], None], *, arcs: int | None = None) -> None:
        """arcs: edges per chunk, overriding the budget."""
        self.budget, self.note, self.arcs = budget, note, arcs
        self.guard = Guard()  # used if the model runs without checks
        self.off = False
        self._orders: WeakKeyDictionary[Space, ByTarget] = WeakKeyDictionary()
        self.counts: dict[str, int] = {}  # chunks of the last call, by layer and function
        self._told: set[str] = set()
        self._longest = 0

    def order(self, edges: Space, nodes: Space, target_e: Tensor) -> ByTarget:
        if edges not in self._orders:
            with torch._C.DisableTorchFunction():
                self._orders[edges] = ByTarget(edges, nodes, target_e)
        return self._orders[edges]

    def room(self, device: torch.device, ranks: int) -> int:
        """Bytes that the messages of a layer may take at the same time."""
        return self.budget.limit(device, ranks).whole

    def tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.note(text)

    def tell_of_hub(self, edges: int, text: str) -> None:
        """Report a node with many edges once: it is the same node in every layer."""
        if edges > self._longest:
            self._longest = edges
            self.note(text)


def run_in_chunks(part: Any, label: str, chunks: Chunks) -> None:
    """Let a layer run in chunks; a layer with its own `propagate` is left unchanged."""
    kind = type(part)
    for name in STEPS:
        home = getattr(kind, name).__module__
        if home.endswith((".message_passing", f"_{name}")):  # PyG's function, or one that PyG generated for a class
            setattr(part, name, MethodType(ChunkedCall(name, label, chunks), part))
    names = list(signature(kind.forward).parameters)
    if ASKED in names:
        at = names.index(ASKED) - 1
        part.register_forward_pre_hook(partial(_asks, at), with_kwargs=True)


def _asks(at: int, part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    part.keeps_attention = (args[at] if len(args) > at else kwargs.get(ASKED)) is not None


class ChunkedCall:
    """`propagate` or `edge_updater` of one layer."""

    ours = True  # the layer is unchanged since PyG defined it

    def __init__(self, name: str, label: str, chunks: Chunks) -> None:
        self.name, self.label, self.chunks = name, label, chunks
        self._known: WeakKeyDictionary[Any, dict[Any, Known]] = WeakKeyDictionary()

    def __call__(self, conv: Any, edge_index: Any, *args: Any, size: Any = None, **given: Any) -> Any:
        """Return the function's result, in chunks if that is exact and memory is short."""
        forward, rows = running.get(), rows_of(edge_index)

        def whole() -> Any:
            sized = {} if size is None else {"size": size}
            return getattr(type(conv), self.name)(conv, edge_index, *args, **sized, **given)

        if forward is None or rows is None or args or size is not None or self.chunks.off:
            return whole()
        if not _is_plain(conv, forward, rows):
            return whole()
        of_layer, e = self._known.setdefault(conv, {}), rows.space.size
        key = torch.is_grad_enabled(), *(weight.requires_grad for weight in conv.parameters())
        known = of_layer.get(key)
        if known is not None and e > known.edges * GROWN:
            known = None
        widest = _widest(given)
        if known is None and (not e or widest * SURELY_SMALL * e <= self._limit(forward).whole):
            known = of_layer[key] = Known(e)
        if known is not None and known.most_arcs is None:
            return whole()
        draws = forward.counts.draws
        steps = None
        try:
            steps, by_target = self._steps(forward, conv, edge_index, rows, given)
            if known is None:
                known = of_layer[key] = self._tried(forward, steps, by_target)
            if known.most_arcs is not None:
                return self._in_chunks(conv, steps, by_target, known, given)
        except (NotInChunks, InputError) as error:  # the guard refuses again what it refused here
            if steps is not None and steps.totals:
                raise
            of_layer[key] = Known(e)
            if 2 * widest * e > self._limit(forward).whole:
                least = words.size(2 * widest * e)
                self.chunks.tell(f"{self.label} keeps its messages whole, at least {least}, since {error}")
        forward.counts.draws = draws
        return whole()

    def _limit(self, forward: Forward) -> Limit:
        return self.chunks.budget.limit(forward.view.ids.device, forward.transport.size)

    def _steps(
        self, forward: Forward, conv: Any, edge_index: Tensor, rows: Rows, given: dict[str, Any]
    ) -> tuple[Steps, ByTarget]:
        """The layer's computation as steps; rows of neighbours are fetched."""
        inspector = conv.inspector
        with torch._C.DisableTorchFunction():
            ends = edge_index.detach()
            assert rows.space.ends is not None  # see _is_plain
            by_target = self.chunks.order(rows.space, rows.space.ends[1], ends[1])
        names = {function: inspector.get_param_names(function) for function in STEPS[self.name]}
        late = _late(conv, self.name)
        arguments = Arguments(forward, by_target, ends)
        arguments.collect(conv, inspector.get_flat_param_dict([*names, *(["update"] if late else [])]), given)
        if arguments.special.union(arguments.lifted).intersection(late):
            raise NotInChunks("its update reads edges")
        guard = forward.guard if forward.guard.checks else self.chunks.guard
        return Steps(forward, conv, arguments, names, guard, self.name == "edge_updater"), by_target

    def _in_chunks(self, conv: Any, steps: Steps, by_target: ByTarget, known: Known, given: dict[str, Any]) -> Any:
        assert known.most_arcs is not None
        arguments, steps.weights = steps.arguments, known.weights
        chunks, number = by_target.cut(known.most_arcs), len(arguments.tensors)
        tensors = [*arguments.tensors, *steps.weights]
        self.chunks.counts[f"{self.label} {self.name}"] = len(chunks)
        out: Tensor = InChunks.apply(steps, chunks, number, *tensors)  # type: ignore[no-untyped-call]
        mark(out, Rows(by_target.edges if steps.by_edge else by_target.nodes, steps.dim))
        if steps.by_edge:
            return out
        late = _late(conv, self.name)
        return conv.update(out, **{name: given.get(name, late[name].default) for name in late})

    def _tried(self, forward: Forward, steps: Steps, by_target: ByTarget) -> Known:
        """Measure the layer on a few rows, and choose its chunks."""
        limit, e = self._limit(forward), by_target.edges.size
        try:
            with torch._C.DisableTorchFunction():
                sample = by_target.sample(ARCS)
            found = tried(steps, sample)
        except NotInChunks:
            raise
        except Exception as error:
            raise NotInChunks(
                f"a few of its rows alone fail ({type(error).__name__}: {one_line(error, 80)})"
            ) from error
        if found.arc_bytes * e <= limit.whole:
            return Known(e)
        if self.chunks.arcs is not None:
            return Known(e, self.chunks.arcs, found.weights)
        most = max(1, int(limit.chunk / found.arc_bytes))
        most = 1 << (most.bit_length() - 1)  # a power of two, so that layers share their chunks
        longest = by_target.longest()
        if longest > most:
            self.chunks.tell_of_hub(
                longest,
                f"{self.label}: one node has {longest:,} edges, whose messages take "
                f"{words.size(longest * found.arc_bytes)} by themselves (a chunk has {words.size(limit.chunk)})",
            )
        return Known(e, most, found.weights)


def _late(conv: Any, name: str) -> dict[str, Any]:
    """The arguments of `update`, which is called once, for all rows."""
    found: dict[str, Any] = conv.inspector.get_param_dict("update") if name == "propagate" else {}
    return found


def _is_plain(conv: Any, forward: Forward, rows: Rows) -> bool:
    """Whether the call runs over edges of the graph, in a layer that uses only PyG's standard functions."""
    if rows.points is not Ends.BOTH or rows.dim != 1 or not rows.is_single or forward.trusted or forward.chunk:
        return False
    if rows.space.ends is None:
        return False
    hooked = any(hooks for name, hooks in vars(conv).items() if name.startswith(HOOKS) and name.endswith("_hooks"))
    return (
        not hooked and not conv.explain and conv.decomposed_layers == 1 and not getattr(conv, "keeps_attention", False)
    )


def _widest(given: dict[str, Any]) -> int:
    """Bytes per row of the widest argument."""
    tensors = [x for value in given.values() for x in flat((value,))]
    with torch._C.DisableTorchFunction():
        return max((x.numel() // max(1, *x.shape) * x.element_size() for x in tensors if x.dim()), default=8)
