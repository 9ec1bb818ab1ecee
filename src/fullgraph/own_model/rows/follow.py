"""Follow rows through one torch function: find the rows of its result from the basic operations it consists of.

A torch function consists of a few hundred kinds of basic operations. `Follow` sees each of them and asks its rule for
the mark of the result. A rule refuses an operation that mixes rows of different nodes; if only a sum over all ranks is
missing, it returns PARTIAL. An operation without a rule is refused if an argument holds rows.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.pointwise import POINTWISE
from fullgraph.own_model.rows.spaces import PARTIAL, SAME, Mark, Rows, Sets, Space, mark, mark_of, rows_of

UNKNOWN = "; write it with operations on single rows and message passing, or go without the check (--no-check)"


@dataclass(eq=False)
class Op:
    """One basic operation: its arguments and its results."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    follow: "Follow"

    @cached_property
    def name(self) -> str:
        """The name without the underscore of an in-place operation."""
        return str(self.func._schema.name).split("::")[1].rstrip("_")

    @cached_property
    def given(self) -> dict[str, Any]:
        """The arguments by name, defaults included."""
        named = {}
        for index, argument in enumerate(self.func._schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            named[argument.name] = (
                self.args[index] if index < len(self.args) else self.kwargs.get(argument.name, default)
            )
        return named

    @cached_property
    def tensors(self) -> list[Tensor]:
        return list(flat((self.args, tuple(self.kwargs.values()))))

    @property
    def x(self) -> Tensor:
        """The first argument."""
        first: Tensor = self.args[0]
        return first

    @cached_property
    def marked(self) -> list[tuple[Tensor, Rows]]:
        """The arguments that hold rows."""
        return [(x, rows) for x in self.tensors if (rows := rows_of(x)) is not None]

    def dim(self, name: str, of: Tensor) -> int:
        """A dimension among the arguments, counted from 0."""
        value: int = self.given[name]
        return value % max(1, of.dim())

    def what(self) -> str:
        """The meaning of the rows, in words."""
        return f"rows of {self.marked[0][1].space.kind}" if self.marked else "rows"


Rule = Callable[[Op], Any]  # returns the mark of the result, or a list of marks


def draws(func: Any) -> bool:
    """Whether a basic operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


class NoDraws(TorchDispatchMode):
    """Guards a call without rows: only random numbers could differ between ranks."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if draws(func):
            refuse(f"{func._schema.name} draws random numbers, which depend on the number of ranks; use F.dropout")
        return func(*args, **(kwargs or {}))


@dataclass
class Follow(TorchDispatchMode):
    """Marks the results of all operations in its block."""

    rules: dict[str, Rule]
    sets: Sets
    checks: bool = True  # False: an operation without a rule is allowed
    writes: bool = False  # the call is x[index] = value; torch drops leading dimensions of length 1 from the value
    picked_rows: bool = False  # rows were chosen by values, which change from step to step
    joined_rows: bool = False  # sets of rows were joined into one that is not among the arguments

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def nodes(self) -> Space:
        return self.sets.nodes

    def picked(self, space: Space, chosen: Tensor, size: int) -> Space:
        self.picked_rows = True
        return self.sets.picked(space, chosen, size)

    def joined(self, spaces: list[Space]) -> Space:
        self.joined_rows = True
        return self.sets.joined(spaces)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = Op(func, args, kwargs or {}, None, self)
        before = [mark_of(x) for x in op.tensors]
        try:
            op.out = func(*args, **op.kwargs)
        except (RuntimeError, IndexError):
            self._explained(op, before)
            raise
        if any(before) or op.name in MAKERS or draws(func):
            self._mark(op, self._allowed(op, before), before)
        return op.out

    def _explained(self, op: Op, before: list[Mark | None]) -> None:
        """Raise the refusal of an operation's rule if the operation failed; it explains the failure."""
        if any(before):
            with suppress(AttributeError, TypeError, KeyError):  # a rule may read the result, which is missing
                self._ruled(op, before)

    def _allowed(self, op: Op, before: list[Mark | None]) -> Any:
        try:
            return self._ruled(op, before)
        except InputError:
            if self.checks:
                raise
        outs = op.out if isinstance(op.out, tuple | list) else [op.out]
        n = self.nodes.size
        return [Rows(self.nodes, 0) if isinstance(x, Tensor) and x.shape[:1] == (n,) else None for x in outs]

    def _ruled(self, op: Op, before: list[Mark | None]) -> Any:
        if PARTIAL in before and op.name not in LINEAR:
            refuse(f"{op.name} of a sum over {op.what()} within one call; take the sum first, in a line of its own")
        rule = self.rules.get(op.name)
        if rule is None and op.name in POINTWISE:
            rule = self.rules["pointwise"]
        if rule is not None:
            return rule(op)
        if draws(op.func):
            refuse(f"{op.name} draws random numbers, which depend on the number of ranks; use F.dropout")
        if op.marked:
            refuse(f"{op.name} is not known to work on {op.what()} of one rank alone{UNKNOWN}")
        return None

    def _mark(self, op: Op, marks: Any, before: list[Mark | None]) -> None:
        outs = list(flat(op.out))
        for out, what in zip(outs, marks if isinstance(marks, list) else [marks] * len(outs), strict=True):
            if type(what) is Rows and out._is_view() and self.checks:
                _check_written(op, out, before)
            mark(out, SAME if what is None else what)


def _check_written(op: Op, out: Tensor, before: list[Mark | None]) -> None:
    """Allow writing through a view only into a tensor of rows: other tensors would keep an old mark."""
    was = [what for x, what in zip(op.tensors, before, strict=True) if x is out]
    if was and type(was[0]) is not Rows:
        refuse(
            f"{op.name} writes {op.what()} into a part or a view of a tensor that is not made of rows; make the tensor "
            "with x.size(0), zeros_like or new_zeros, or write to the whole tensor"
        )


MAKERS = {"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "expand", "clone", "view",
          "_unsafe_view", "zeros_like", "ones_like", "full_like", "empty_like", "zero", "fill"}  # fmt: skip
LINEAR = {"view", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "clone", "detach", "alias",
          "_to_copy"}  # fmt: skip


def flat(value: Any) -> Any:
    """The tensors in nested tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from flat(item)
