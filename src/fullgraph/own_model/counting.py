"""`len` and `range` in the files of a user's model count the rows of all ranks.

Python's len returns a plain number, which does not show that it counts one rank's rows. Therefore the files that define
a model's classes get replacements: len(x) equals x.size(0), and range goes as far as all rows. For other arguments
they behave like Python's.
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
    """len(x); for a tensor of rows, the count of all ranks."""
    rows = rows_of(x) if isinstance(x, Tensor) else None
    if rows is None or rows.dim or running.get() is None:
        return builtins.len(x)
    return x.shape[0]


def counted_range(*bounds: Any) -> range:
    """range(...), up to a number of rows of all ranks."""
    return builtins.range(*map(number, bounds))


OURS = {"len": length, "range": counted_range}


def count_all_rows(part: nn.Module) -> None:
    """Define these names in the module of a user's class, unless it has its own."""
    for kind in type(part).__mro__:
        if is_library(kind.__module__) or kind.__module__ == "builtins":
            continue
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                for name, function in OURS.items():
                    method.__globals__.setdefault(name, function)
