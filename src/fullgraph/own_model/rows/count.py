"""Numbers of rows that a model asks for: x.size(0), x.shape[0], edge_index.numel()."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from fullgraph.own_model.rows.place import in_users_code, is_at_hand_in_users_code
from fullgraph.own_model.rows.spaces import Space


class Count(np.int64):
    """scale * rows + shift. As a tensor's size it counts this rank's rows; as a number it counts all ranks' rows.

    So zeros(x.size(0), 8) has a row for each row of x, and h.sum(0) / x.size(0) is the mean over all nodes. It derives
    from NumPy's integer: torch accepts that as a number, and Python calls our methods for `1.0 / count`, which it would
    not do for a subclass of int.
    """

    space: Space
    ask: Callable[[Space], int]  # returns the number of rows of all ranks
    given: Callable[[int], None]  # called when this rank's number leaves as a plain number
    scale: int
    shift: int

    @staticmethod
    def of(
        space: Space, ask: Callable[[Space], int], given: Callable[[int], None], scale: int = 1, shift: int = 0
    ) -> "Count":
        made = Count(space.size * scale + shift)
        made.space, made.ask, made.given, made.scale, made.shift = space, ask, given, scale, shift
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """isinstance(x.size(0), int) holds, as models and PyG expect."""
        return int

    @property
    def rows(self) -> int:
        """The number of rows on this rank."""
        return self.space.size * self.scale + self.shift

    @property
    def total(self) -> int:
        return self.ask(self.space) * self.scale + self.shift

    def _linear(self, scale: int, shift: int) -> "Count":
        return Count.of(self.space, self.ask, self.given, self.scale * scale, self.shift * scale + shift)

    def __index__(self) -> int:
        if is_at_hand_in_users_code():
            self.given(self.rows)
        return self.rows

    def bit_length(self) -> int:
        return self.total.bit_length()

    @property
    def real(self) -> int:  # type: ignore[override]
        return self.total

    def __int__(self) -> int:
        self.given(self.rows)
        return self.rows

    def __float__(self) -> float:
        return float(self.total)

    def __bool__(self) -> bool:
        return bool(self.total)

    def __add__(self, other: Any) -> Any:
        return self._linear(1, other) if type(other) is int else self.total + number(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._linear(1, -other) if type(other) is int else self.total - number(other)

    def __mul__(self, other: Any) -> Any:
        return self._linear(other, 0) if type(other) is int else self.total * number(other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        """h.numel() // columns counts rows again."""
        if type(other) is int and other and not self.scale % other and not self.shift % other:
            return Count.of(self.space, self.ask, self.given, self.scale // other, self.shift // other)
        return self.total // number(other)

    def __eq__(self, other: Any) -> bool:
        """Compare the number of all rows; libraries also compare it with a size that they read from a tensor."""
        if type(other) is Count:
            return self.rows == other.rows
        if type(other) is int and not other:  # a rank without rows does what the others do
            return not self.total
        return bool(other == self.total or (other == self.rows and not in_users_code()))

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.rows)

    def __repr__(self) -> str:
        return str(self.total)

    __str__ = __repr__

    def __format__(self, how: str) -> str:
        return format(self.total, how)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy functions of a count, such as np.log(x.size(0))."""
        return getattr(function, method)(*map(number, inputs), **kwargs)

    def item(self, *_: Any) -> int:
        return self.total


def number(value: Any) -> Any:
    """A count as its number over all ranks; any other value unchanged."""
    return value.total if type(value) is Count else value


def _on_totals(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: function(self.total, *map(number, others))


def _reversed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(number(other), self.total)


_NUMBERS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("truediv", "floordiv", "mod", "pow", "neg", "pos", "abs")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "sub")},
    **{name: getattr(operator, f"__{name}__") for name in ("and", "or", "xor", "lshift", "rshift", "invert")},
    "divmod": divmod,
    "round": round,
}
for _name, _function in _NUMBERS.items():
    if _name not in ("sub", "floordiv"):
        setattr(Count, f"__{_name}__", _on_totals(_function))
    if _name in ("truediv", "floordiv", "mod", "pow", "sub", "divmod", "and", "or", "xor", "lshift", "rshift"):
        setattr(Count, f"__r{_name}__", _reversed(_function))


class Shape(tuple[Any, ...]):
    """A tensor's shape, with counts as numbers of rows."""

    __slots__ = ()

    def numel(self) -> Any:
        return math.prod(self)

    def __add__(self, other: Any) -> "Shape":
        return Shape((*self, *other))

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Shape(found) if isinstance(key, slice) else found
