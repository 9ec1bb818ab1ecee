"""`len` and `range` in the files of a user's model: they count the rows of all ranks.

Python's len gives a plain number, of which nobody can tell later that it counts one rank's rows. So the files that a
model's classes come from are given names of their own: len(x) is what x.size(0) is, and range goes as far as all rows.
For anything but rows they are Python's own.
"""

import builtins
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from fullgraph.own_model.forward import running
from fullgraph.own_model.rows.count import number
from fullgraph.own_model.rows.place import is_library
from fullgraph.own_model.rows.spaces import rows_of


def length(x: Any, /) -> Any:
    """len(x), where the rows of a tensor count those of all ranks."""
    rows = rows_of(x) if isinstance(x, Tensor) else None
    if rows is None or rows.dim or running.get() is None:
        return builtins.len(x)
    return x.shape[0]


def counted_range(*bounds: Any) -> range:
    """range(...), as far as a number of rows of all ranks."""
    return builtins.range(*map(number, bounds))


OURS = {"len": length, "range": counted_range}


def count_all_rows(part: nn.Module) -> None:
    """Give the files of a user's module these names, where they have none of their own."""
    for kind in type(part).__mro__:
        if is_library(kind.__module__) or kind.__module__ == "builtins":
            continue
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                for name, function in OURS.items():
                    method.__globals__.setdefault(name, function)
