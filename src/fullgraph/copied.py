"""Copies of a user's module: functions that it holds, such as hooks, refer to the copy."""

import copy
from types import CellType, FunctionType
from typing import Any, TypeVar

M = TypeVar("M")


def copied(module: M) -> M:
    """A deep copy of a torch module.

    `copy.deepcopy` keeps functions as they are. So a hook `lambda *_: self.seen.append(...)` of the copy would write to
    the original.
    """
    memo: dict[int, Any] = {}
    made = copy.deepcopy(module, memo)
    for part in made.modules():  # type: ignore[attr-defined]
        for held in (vars(part), *(value for value in vars(part).values() if isinstance(value, dict))):
            for name, value in list(held.items()):
                if isinstance(value, FunctionType):
                    held[name] = _moved(value, memo)
    return made


def _moved(value: Any, memo: dict[int, Any]) -> Any:
    """The copy of an object; a function refers to copies in its closure and its defaults."""
    if not isinstance(value, FunctionType):
        return memo.get(id(value), value)
    cells, defaults = value.__closure__, value.__defaults__
    if not cells and not defaults:
        return value
    if id(value) not in memo:
        moved = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
        memo[id(value)] = moved  # a function may refer to itself
        closure = cells and tuple(CellType(*(_moved(one, memo) for one in _held(cell))) for cell in cells)
        given = defaults and tuple(_moved(one, memo) for one in defaults)
        memo[id(value)] = moved = FunctionType(value.__code__, value.__globals__, value.__name__, given, closure)
        moved.__kwdefaults__, moved.__dict__, moved.__qualname__ = (
            value.__kwdefaults__, {**value.__dict__}, value.__qualname__,
        )  # fmt: skip
    return memo[id(value)]


def _held(cell: CellType) -> list[Any]:
    """What a cell holds; nothing where its variable is not set."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []
