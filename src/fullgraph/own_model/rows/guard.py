"""Follow rows through every torch function that a model calls.

The first time a function is called with certain rows and shapes, `Follow` watches its operations. The result is kept,
so the same call costs only a look-up in later steps.
"""

from collections.abc import Hashable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from fullgraph.own_model.rows.count import Count, Shape, number
from fullgraph.own_model.rows.follow import Follow, NoDraws, flat
from fullgraph.own_model.rows.indexing import INDEXING
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.shapes import SHAPES
from fullgraph.own_model.rows.spaces import (
    NAME,
    PARTIAL,
    SAME,
    Even,
    Mark,
    Rows,
    Space,
    current,
    mark,
    mark_of,
    rows_of,
)
from fullgraph.own_model.rows.trace import Call, Trace, marked_as
from fullgraph.own_model.rows.values import VALUES

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

RULES = VALUES | SHAPES | INDEXING
MOST = 20_000  # calls that are kept
FEW = 100  # largest length of a constant in a model
Outcome = tuple[Any, ...]  # a mark for each tensor of the result; sets of rows by their number in the call
_T = Tensor
SIZED = {
    _T.view, _T.reshape, torch.reshape, _T.expand, _T.repeat, _T.unflatten, torch.unflatten, _T.narrow, torch.narrow,
    _T.split, torch.split, _T.broadcast_to, torch.broadcast_to, _T.tile, torch.tile, _T.new_tensor, _T.as_strided,
}  # fmt: skip
SPREADS = {_T.expand, _T.repeat, _T.broadcast_to, torch.broadcast_to}


class Guard:
    """Knows the calls of one model."""

    def __init__(self, *, checks: bool = True) -> None:
        """checks: False allows calls that mix rows of one rank alone."""
        self.checks = checks
        self.owned: set[int] = set()  # the model's parameters and buffers, by id
        self.tables: list[Tensor] = []  # parameters and buffers with one row per node
        self._known: dict[Hashable, Outcome] = {}
        self._traces: dict[Hashable, Trace] = {}
        self._met: set[str] = set()
        self.passes = 0  # training passes

    def trace(self, graph: Any, training: bool) -> Trace:
        """The calls of the last pass over a graph."""
        return self._traces.setdefault((graph, training), Trace())

    def meet(self, what: str) -> None:
        """Refuse a feature whose backward pass is not followed, such as a hook, unless the self-check has compared
        it.
        """
        if what not in self._met and self.checks and self.passes > 1:
            refuse(
                f"{what} begins in a later step, and the self-check has not compared its gradients; use it from the "
                "first step on, or go without the check (--no-check)"
            )
        self._met.add(what)

    def call(self, forward: "Forward", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result, marked; partial sums are completed over ranks."""
        place, trace = forward.calls, forward.trace
        again = trace.again(place, func, args, kwargs)  # for a call that replaces another one
        forward.calls += 1
        if again is not None:
            return again.marked(func(*args, **kwargs))
        trace.keep(place, None)
        scan = Scan(forward, func)
        key = scan.key(args, kwargs)
        for x in scan.tensors:
            self.meet_maker(x)
        if self.checks:
            self._check_origins(scan)
        if not scan.marked and not scan.counts:
            call = Call(func, args, kwargs, ())
            with NoDraws() if self.checks else nullcontext():  # type: ignore[no-untyped-call]
                out = func(*args, **kwargs)
            call.marks = tuple(_same(x) for x in flat(out))
            trace.keep(place, call)
            return out
        if scan.counts:
            args, kwargs = scan.without_counts(args), scan.without_counts(kwargs)
        if not scan.marked:
            out = func(*args, **kwargs)
            for x in flat(out):
                _same(x)
            return self._spread(scan, func, out)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            marks = tuple(map(scan.restored, known))
            if not scan.counts and PARTIAL not in marks:
                trace.keep(place, Call(func, args, kwargs, marks))
            out = func(*args, **kwargs)
            marked_as(out, marks)
        else:
            out = self._watched(scan, place, key, func, args, kwargs)
        if scan.counts:
            self._spread(scan, func, out)
        return _completed(scan, out)

    def _check_origins(self, scan: "Scan") -> None:
        """Refuse a tensor that neither a call nor the model made: it may hold rows, or values computed from rows."""
        for x in scan.unknown:
            sizes = {space.size for space in scan.forward.sets.whole if space.size >= FEW}
            if x.grad_fn is not None or (sizes.intersection(x.shape) and id(x) not in self.owned):
                refuse(
                    f"{_name(scan.func)} is given a tensor {list(x.shape)} that was made where rows cannot be followed "
                    "over ranks (TorchScript, nn.Parameter(h), torch.Tensor(h), as_subclass, dlpack, a thread, an "
                    "autograd.Function that returns its input); compute it with calls of torch, inside of forward"
                )

    def meet_maker(self, x: Tensor) -> None:
        """The user's autograd function that computed a tensor."""
        node: Any = x.grad_fn
        if not isinstance(node, BackwardCFunction):
            return
        kind = node._forward_cls  # type: ignore[attr-defined]
        if not kind.__module__.startswith(("fullgraph.", "torch.utils.")):
            self.meet(f"the autograd function {kind.__name__}")

    def _watched(self, scan: "Scan", place: int, key: Hashable | None, func: Any, args: Any, kwargs: Any) -> Any:
        follow = Follow(RULES, scan.forward.sets, self.checks, func is _T.__setitem__)
        with follow:
            out = func(*args, **kwargs)
        outs = list(flat(out))
        for x in outs:
            if getattr(x, NAME, None) is None:
                mark(x, self._guessed(scan, func, x))
        if follow.picked_rows or follow.writes:
            return out
        if follow.joined_rows:
            if not scan.counts:
                scan.forward.trace.keep(place, Call(func, args, kwargs, tuple(getattr(x, NAME) for x in outs)))
            return out
        outcome = tuple(scan.numbered(mark_of(x)) for x in outs)
        if key is not None and None not in outcome:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = outcome
        return out

    def _guessed(self, scan: "Scan", func: Any, x: Tensor) -> Mark:
        """The mark of a result without operations, such as x.data."""
        for given in scan.tensors:
            rows = rows_of(given)
            if rows is not None and given.shape == x.shape:
                return rows
        if self.checks and any(rows_of(given) is not None for given in scan.tensors):
            refuse(f"{_name(func)} gives rows in a form that cannot be followed over ranks")
        return SAME

    def _spread(self, scan: "Scan", func: Any, out: Any) -> Any:
        """A row that is repeated for each row of a set becomes rows of that set."""
        if func in SPREADS and isinstance(mark_of(out), Even | None) and out.dim():
            for dim, size in enumerate(scan.sizes[-out.dim() :]):
                if type(size) is Count and not size.shift:
                    mark(out, Rows(size.space, dim, size.scale))
        return out


def _same(x: Tensor) -> Mark:
    """The mark of a result that was computed without rows."""
    what = current(x)
    if what is None:
        mark(x, SAME)
    return SAME if what is None else what


def _completed(scan: "Scan", out: Any) -> Any:
    """Complete sums over one rank's rows to sums over all ranks, also in a tensor that was written in place."""
    if isinstance(out, Tensor):
        if getattr(out, NAME, None) is not PARTIAL:
            return out
        total = scan.forward.reduce(out)
        return mark(out.copy_(total) if any(x is out for x in scan.tensors) else total, SAME)
    if isinstance(out, tuple | list) and any(mark_of(x) is PARTIAL for x in out if isinstance(x, Tensor)):
        refuse("several sums over rows in one call; take each in a line of its own")
    return out


class Scan:
    """The arguments of one call: which of them hold rows, and a key that identifies the call."""

    def __init__(self, forward: "Forward", func: Any) -> None:
        self.forward, self.func = forward, func
        self.spaces: list[Any] = [forward.sets.nodes, forward.sets.edges]
        self.tensors: list[Tensor] = []
        self.unknown: list[Tensor] = []  # tensors that no call has made
        self.sizes: list[Any] = []
        self.marked = self.counts = False

    def key(self, args: Any, kwargs: Any) -> Hashable | None:
        """The key of the call; None if it cannot be identified."""
        described = self._described(args), *((name, self._described(value)) for name, value in kwargs.items())
        key = (self.func, *described)
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _described(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            self.tensors.append(value)
            what = current(value)
            if what is None:
                if value.is_nested and self.forward.guard.checks:
                    refuse("the model makes a nested tensor, in which rows of nodes cannot be followed over ranks")
                self.unknown.append(value)
            if what is None or what is SAME:
                return value.shape, value.dtype
            self.marked = True
            return self.numbered(what), value.shape, value.dtype
        if kind is tuple or kind is list or kind is torch.Size or kind is Shape:
            return (kind, *map(self._described, value))
        if kind is slice:
            return "slice", self._described(value.start), self._described(value.stop), self._described(value.step)
        if kind is Count:
            self.counts = True
            self.sizes.append(value)
            return "count", self._number(value.space), value.scale, value.shift
        if kind is float:
            return float
        if kind is int:
            self.sizes.append(value)
        return (kind, value) if kind is bool else value

    def numbered(self, what: Mark | None) -> Any:
        if isinstance(what, Rows):
            points = self._number(what.points) if isinstance(what.points, Space) else what.points
            ends = tuple(map(self._number, what.space.ends or ()))
            return "rows", self._number(what.space), what.dim, what.each, points, what.blocks, ends
        return SAME if what is None else what

    def restored(self, what: Any) -> Mark:
        if type(what) is not tuple:
            found: Mark = what
            return found
        _, space, dim, each, points, blocks, _ = what
        return Rows(self.spaces[space], dim, each, self.spaces[points] if type(points) is int else points, blocks)

    def _number(self, space: Space) -> int:
        for number_, known in enumerate(self.spaces):
            if known is space:
                return number_
        self.spaces.append(space)
        return len(self.spaces) - 1

    def without_counts(self, value: Any) -> Any:
        """Counts as sizes or numbers; a slice over all rows of a set has no bounds."""
        kind = type(value)
        if kind is Count:
            return value.rows if self.func in SIZED else number(value)
        if kind is dict:
            return {name: self.without_counts(item) for name, item in value.items()}
        if kind is tuple or kind is list or kind is torch.Size or kind is Shape:
            return (list if kind is list else tuple)(map(self.without_counts, value))
        if kind is slice:
            whole = type(value.stop) is Count and not value.stop.shift and not value.start and value.step in (None, 1)
            return slice(None) if whole else slice(*(_size(end) for end in (value.start, value.stop, value.step)))
        return value


def _size(value: Any) -> Any:
    return value.rows if type(value) is Count else value


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))
