"""The calls of the last forward pass, in order: a model mostly makes the same calls again.

A call that equals the call at its place in the last pass gets the same marks. Comparing costs less than the look-up by
key, because most marks are the same objects in both passes.
"""

from typing import Any

import torch
from torch import Tensor

from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.spaces import NAME, Even, Mark, current, mark

PLAIN = frozenset((int, float, bool, str, type(None), slice, torch.dtype, torch.device))


class Given:
    """A tensor among the arguments of a call."""

    __slots__ = ("dtype", "mark", "shape")

    def __init__(self, x: Tensor) -> None:
        self.mark, self.shape, self.dtype = current(x), x.shape, x.dtype

    def is_like(self, value: Any) -> bool:
        found = getattr(value, NAME, None)
        if type(found) is Even:
            found = current(value)
        return (
            (found is self.mark or found == self.mark)
            and isinstance(value, Tensor)
            and value.shape == self.shape
            and value.dtype is self.dtype
        )


class Call:
    """One call of the last pass: its function, its arguments, and the marks of its results."""

    __slots__ = ("args", "func", "kwargs", "marks")

    def __init__(self, func: Any, args: Any, kwargs: Any, marks: tuple[Mark, ...]) -> None:
        self.func, self.marks = func, marks
        self.args = tuple(map(_described, args))
        self.kwargs = {name: _described(value) for name, value in kwargs.items()}

    def is_again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if (
            (func is not self.func and func != self.func)
            or len(args) != len(self.args)
            or len(kwargs) != len(self.kwargs)
        ):
            return False
        for value, want in zip(args, self.args, strict=True):
            if not _is_like(value, want):
                return False
        return not kwargs or all(name in self.kwargs and _is_like(v, self.kwargs[name]) for name, v in kwargs.items())


def _described(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Tensor):
        return Given(value)
    if kind is tuple or kind is list:
        return [_described(item) for item in value]
    return (kind, value)


def _is_like(value: Any, want: Any) -> bool:
    kind = type(want)
    if kind is Given:
        return want.is_like(value)  # type: ignore[no-any-return]
    if kind is list:
        return isinstance(value, list | tuple) and len(value) == len(want) and all(map(_is_like, value, want))
    known, what = want
    return type(value) is known and known in PLAIN and value == what


class Trace:
    """The calls of a pass over one graph, in training or in evaluation."""

    def __init__(self) -> None:
        self.calls: list[Call | None] = []

    def again(self, place: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The call at this place in the last pass, if it equals this one."""
        if place >= len(self.calls):
            return None
        call = self.calls[place]
        return call if call is not None and call.is_again(func, args, kwargs) else None

    def keep(self, place: int, call: Call | None) -> None:
        """Store a call. None: look up this call by key each time."""
        self.calls[place : place + 1] = [call]


def marked_as(out: Any, marks: tuple[Mark, ...]) -> None:
    """Give the tensors of a result their marks."""
    if len(marks) == 1 and isinstance(out, Tensor):
        mark(out, marks[0])
    elif marks:
        for x, what in zip(flat(out), marks, strict=True):
            mark(x, what)
