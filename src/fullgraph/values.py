"""Frozen values: every field is checked against its annotation when the value is made, and read back from JSON.

    @dataclass(frozen=True, kw_only=True)
    class Loop(Value):
        epochs: Annotated[int, Range(1, 10**9)] = 200
        optimizer: Annotated[str, OneOf("adam", "sgd")] = "adam"

`Loop(epochs=0)` and `read_value(Loop, {"epoch": 3}, "config.json")` each raise one line that names the field;
`read_option(int, "epochs", "3")` reads what a user typed.
"""

import math
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fullgraph.errors import InputError, one_line

T = TypeVar("T")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_RESOLVED: dict[type, dict[str, Any]] = {}


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included unless `above` (low left out) or `below` (high left out)."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def problem(self, value: Any) -> str | None:
        too_low = value <= self.low if self.above else value < self.low
        too_high = value >= self.high if self.below else value > self.high
        if too_low or too_high or value != value:
            low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
            return f"{low} and {'below' if self.below else 'at most'} {self.high:g}"
        return None


@dataclass(frozen=True, init=False)
class OneOf:
    """One of these words."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def problem(self, value: Any) -> str | None:
        return None if value in self.words else f"one of {', '.join(self.words)}"


class Value:
    """Base of frozen dataclasses whose fields are checked when they are made."""

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            problem = _problem(hint, getattr(self, name))
            if problem:
                raise InputError(f"{name}={one_line(getattr(self, name), 60)}: {problem}")


def read_value(kind: type[T], tree: Any, where: str) -> T:
    """A dataclass from the JSON object that its fields were written as; unknown and missing keys are named."""
    if not isinstance(tree, Mapping):
        raise InputError(f"{where} has to be an object with names: got {type(tree).__name__}")
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    unknown = [one_line(key, 40) for key in tree if key not in known]
    if unknown:
        raise InputError(f"{where} has unknown keys {', '.join(unknown)}; known: {', '.join(known)}")
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING and n not in tree]
    if needed:
        raise InputError(f"{where} lacks {', '.join(needed)}")
    hints = _hints(kind)
    given = {name: _read(hints[name], value, f"{where}: {name}") for name, value in tree.items()}
    for name, value in given.items():
        problem = _problem(hints[name], value)
        if problem:
            raise InputError(f"{where}: {name}={one_line(value, 60)}: {problem}")
    return kind(**given)


def read_option(kind: type, name: str, value: Any) -> Any:
    """The value of an option: a text is read as `kind`; any other value has to be of that kind already."""
    read = value
    if isinstance(value, str) and kind is not str:
        with suppress(ValueError, KeyError, OverflowError):
            read = _TRUTH[value.strip().lower()] if kind is bool else _number(kind, value)
    problem = _plain_problem(kind, read)
    if problem:
        raise InputError(f"{name}={one_line(value, 60)}: {problem}")
    return read


def _number(kind: type, text: str) -> float:
    """A number as people write it: 1e6 is a whole one."""
    try:
        return kind(text)  # type: ignore[no-any-return]
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else number


def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, which take a moment to resolve and never change."""
    if kind not in _RESOLVED:
        hints = get_type_hints(kind, include_extras=True)
        _RESOLVED[kind] = {field.name: hints[field.name] for field in fields(kind)}
    return _RESOLVED[kind]


def _read(hint: Any, value: Any, where: str) -> Any:
    """JSON's lists as tuples and its objects as the dataclasses they are; all else as it is."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _read(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(inner[1], item, f"{where} {key}") for key, item in value.items()}
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return read_value(hint, value, where)
    return value


def _problem(hint: Any, value: Any) -> str | None:
    """What a value should have been, or None."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _problem(inner[0], value) or next(filter(None, (rule.problem(value) for rule in inner[1:])), None)
    if origin in (Union, types.UnionType):
        problems = [_problem(option, value) for option in inner]
        return None if None in problems else " or ".join(str(problem) for problem in problems)
    if origin is tuple:
        if not isinstance(value, tuple):
            return "a list"
        return next(filter(None, (_problem(inner[0], item) for item in value)), None)
    if origin is dict:
        if not isinstance(value, dict):
            return "an object with names"
        return next(filter(None, (_problem(inner[1], item) for item in value.values())), None)
    return _plain_problem(hint, value)


def _plain_problem(hint: Any, value: Any) -> str | None:
    if hint is Any or getattr(hint, "_is_protocol", False):  # a protocol is the type checker's to see to
        return None
    if hint is type(None):
        return None if value is None else "nothing"
    if hint is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
        return None if good else "a finite number"
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    names = {bool: "true or false", str: "a text"}
    return None if isinstance(value, hint) else names.get(hint, hint.__name__)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
