"""The calls of the last forward pass, in order: a model mostly makes the same calls again.

A call that equals the call at its place in the last pass gets the same marks. Comparing costs less than the look-up by
key, because most marks are the same objects in both passes.
"""

from typing import Any
from weakref import ref

import torch
from torch import Tensor

from fullgraph.own_model.rows.follow import flat
from fullgraph.own_model.rows.spaces import NAME, Even, Mark, current, mark

PLAIN = frozenset((int, float, bool, str, type(None), slice, torch.dtype, torch.device))


class Given:
    """A tensor among the arguments of a call. A tensor without a mark, such as a weight, must be the same object.

    Any other has to be made by the same kind of operation: a backward pass of the user's own may begin there.
    """

    __slots__ = ("dtype", "kind", "maker", "mark", "shape", "tensor")

    def __init__(self, x: Tensor) -> None:
        self.mark, self.kind, self.shape, self.dtype = current(x), type(x), x.shape, x.dtype
        self.tensor, self.maker = ref(x) if self.mark is None else None, type(x.grad_fn)

    def is_like(self, value: Any) -> bool:
        if self.tensor is not None:
            if value is not self.tensor():
                return False
        elif type(value) is not self.kind or type(value.grad_fn) is not self.maker:
            return False
        found = getattr(value, NAME, None)
        if type(found) is Even:
            found = current(value)
        return (found is self.mark or found == self.mark) and value.shape == self.shape and value.dtype is self.dtype


class Several:
    """A list or tuple among the arguments."""

    __slots__ = ("items",)

    def __init__(self, value: Any) -> None:
        self.items = tuple(map(_described, value))

    def is_like(self, value: Any) -> bool:
        if not isinstance(value, list | tuple) or len(value) != len(self.items):
            return False
        return all(want.is_like(item) for item, want in zip(value, self.items, strict=True))


class Constant:
    """Any other argument."""

    __slots__ = ("kind", "value")

    def __init__(self, value: Any) -> None:
        self.kind, self.value = type(value), value

    def is_like(self, value: Any) -> bool:
        return type(value) is self.kind and self.kind in PLAIN and bool(value == self.value)


def _described(value: Any) -> Given | Several | Constant:
    if isinstance(value, Tensor):
        return Given(value)
    return Several(value) if type(value) in (tuple, list) else Constant(value)


class Call:
    """One call of the last pass: its function, its arguments, and the marks of its results."""

    __slots__ = ("args", "func", "kwargs", "marks")

    def __init__(self, func: Any, args: Any, kwargs: Any, marks: tuple[Mark, ...]) -> None:
        self.func, self.marks = func, marks
        self.args = tuple(map(_described, args))
        self.kwargs = {name: _described(value) for name, value in kwargs.items()}

    def is_again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if func is not self.func and func != self.func:
            return False
        if len(args) != len(self.args) or len(kwargs) != len(self.kwargs):
            return False
        for value, want in zip(args, self.args, strict=True):
            if not want.is_like(value):
                return False
        for name, value in kwargs.items():
            if name not in self.kwargs or not self.kwargs[name].is_like(value):
                return False
        return True

    def marked(self, out: Any) -> Any:
        """The result of the call in this pass, with the marks of the last one."""
        marked_as(out, self.marks)
        return out


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
