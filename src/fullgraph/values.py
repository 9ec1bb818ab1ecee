"""Frozen values: every field is checked against its annotation when the value is built, and read back from JSON.

    @dataclass(frozen=True, kw_only=True)
    class Loop(Value):
        epochs: Annotated[int, Range(1, 10**9)] = 200
        optimizer: Annotated[str, OneOf("adam", "sgd")] = "adam"

`Loop(epochs=0)` and `read_value(Loop, {"epoch": 3}, "config.json")` each raise one line that names the field;
`read_option(int, "epochs", "3")` reads a user's text, and `tree_of(value)` is the JSON that is written.
A field whose annotation holds a table of names (`Annotated[Codec, CODECS]`, see named.py) also takes a name.
`Help("...")` in an annotation is the text of the field's option on the command line (commands/shared.py).
"""

import math
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fullgraph.errors import InputError, nearest, one_line
from fullgraph.own_code import own_code, unfit
from fullgraph.words import bytes_in

T = TypeVar("T")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_RESOLVED: dict[type, dict[str, Any]] = {}
_HELP: dict[type, dict[str, "Help"]] = {}


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included; `above` leaves out low, `below` leaves out high."""

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
        if value in self.words:
            return None
        return f"one of {', '.join(word or 'nothing' for word in self.words)}{nearest(value, self.words)}"


@dataclass(frozen=True)
class Help:
    """The text that `--help` prints for a field; `default` is printed instead of the field's default."""

    text: str
    default: str = ""


@dataclass(frozen=True)
class Bytes:
    """A size such as 2GiB or 500MB, or one of these words."""

    words: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        if value in self.words or bytes_in(str(value)):
            return None
        return f"{' or '.join((*self.words, 'a size such as 2GiB or 500MB'))}"


class Value:
    """Base of frozen dataclasses whose fields are checked when they are built; a text may name a value or list
    items.
    """

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            given = value = getattr(self, name)
            if isinstance(given, str) and problem_of(hint, given):
                value = _spelled(hint, given, name)
                object.__setattr__(self, name, value)
            problem = problem_of(hint, value)
            if problem:
                raise InputError(f"{name}={one_line(given, 60)}: {problem}")


def read_value(kind: type[T], tree: Any, where: str) -> T:
    """Read a dataclass from a JSON object of its fields; an error names unknown and missing keys."""
    if not isinstance(tree, Mapping):
        raise InputError(f"{where} has to be an object with names: got {type(tree).__name__}")
    hints = hints_of(kind)
    unknown = [one_line(key, 40) for key in tree if key not in hints]
    if unknown:
        told = f"{where} has unknown keys {', '.join(unknown)}{nearest(unknown[0], hints)}"
        raise InputError(f"{told}; known: {', '.join(hints) or 'none'}")
    given = {name: _read(hints[name], value, f"{where}: {name}") for name, value in tree.items()}
    return built(kind, given, where)


def built(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """Build the dataclass from checked fields; `where` begins the line of an error."""
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING and n not in given]
    if needed:
        raise unfit(kind, f"lacks {', '.join(needed)}{getattr(kind, 'if_lacking', '')}", where)
    for name, value in given.items():
        problem = problem_of(hints_of(kind)[name], value)
        if problem:
            raise InputError(f"{where}: {name}={one_line(value, 60)}: {problem}")
    try:
        with own_code(kind):
            return kind(**given)
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # a user's own class may refuse values like this
        raise InputError(f"{where}: {one_line(error, 160)}") from error


def tree_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON, which `read_value` reads back."""
    return {name: _tree(hint, getattr(value, name), name) for name, hint in hints_of(type(value)).items()}


def flat(tree: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Every leaf of a JSON tree under its dotted name."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{within}{name}.") if isinstance(value, Mapping) else {f"{within}{name}": value}
    return found


def read_option(hint: Any, name: str, value: Any) -> Any:
    """Read an option's value: a text is parsed as the field's type; any other value must have that type."""
    read = _from_text(hint, value) if isinstance(value, str) else value
    problem = problem_of(hint, read)
    if problem:
        raise InputError(f"{name}={one_line(value, 60)}: {problem}")
    return read


def axis_of(hint: Any) -> Any:
    """The table of names for a field's values, or None."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((rule for rule in inner[1:] if hasattr(rule, "read")), None)
    if origin in (Union, types.UnionType):
        return next((axis for axis in map(axis_of, inner) if axis is not None), None)
    return None


def choices_of(hint: Any) -> list[str]:
    """The words that a field accepts: the words of its rule, and our names on its axis."""
    if get_origin(hint) is Annotated and axis_of(hint) is not None:
        return list(axis_of(hint))
    if get_origin(hint) is Annotated:
        return [word for rule in get_args(hint)[1:] for word in getattr(rule, "words", ())]
    inner = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    return [word for option in inner for word in choices_of(option)]


def hints_of(kind: type) -> dict[str, Any]:
    """The resolved annotations of a dataclass, cached because resolving takes time.

    Fields that the class names in `no_options` are left out: code sets them, never a file or a user's text.
    """
    if kind not in _RESOLVED:
        with own_code(kind):
            hints = get_type_hints(kind, include_extras=True)
            left_out = getattr(kind, "no_options", ())
        split = {
            field.name: _without_help(hints[field.name])
            for field in fields(kind)
            if field.init and field.name not in left_out
        }
        _RESOLVED[kind] = {name: hint for name, (hint, _) in split.items()}
        _HELP[kind] = {name: text for name, (_, text) in split.items()}
    return _RESOLVED[kind]


def help_of(kind: type) -> dict[str, Help]:
    """The help of every field of a dataclass; empty if the annotation has none."""
    hints_of(kind)
    return _HELP[kind]


def _without_help(hint: Any) -> tuple[Any, Help]:
    """Split an annotation into the rest, with rules and tables in their places, and its help."""
    if get_origin(hint) is not Annotated:
        return hint, Help("")
    inner, *rules = get_args(hint)
    rest = tuple(rule for rule in rules if not isinstance(rule, Help))
    text = next((rule for rule in rules if isinstance(rule, Help)), Help(""))
    return Annotated[inner, *rest] if rest else inner, text


def _from_text(hint: Any, text: str) -> Any:
    """Parse a user's text; a text that does not parse stays a text, and a later check refuses it."""
    kinds = list(plain_kinds(hint))
    if not text and type(None) in kinds:
        return None
    with suppress(ValueError, KeyError, OverflowError):
        if bool in kinds:
            return _TRUTH[text.strip().lower()]
        for kind in (int, float):
            if kind in kinds:
                return _number(kind, text)
    return _spelled(hint, text, "") if get_origin(hint) is tuple else text


def _number(kind: type, text: str) -> float:
    """Parse a number as people write it: 1e6 is a whole number."""
    try:
        return kind(text)  # type: ignore[no-any-return]
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else number


def plain_kinds(hint: Any) -> Iterator[Any]:
    """The types that a field's value may have, without rules and tables."""
    if get_origin(hint) is Annotated:
        yield from () if axis_of(hint) is not None else plain_kinds(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for inner in get_args(hint):
            yield from plain_kinds(inner)
    else:
        yield hint


def _spelled(hint: Any, text: str, where: str) -> Any:
    """Turn a text into a value: the named value, or a list with commas between its items."""
    axis = axis_of(hint)
    if axis is not None:
        return axis.read(text, where)
    if get_origin(hint) is tuple:
        return tuple(_from_text(get_args(hint)[0], item.strip()) for item in text.split(",") if item.strip())
    return text


def _read(hint: Any, value: Any, where: str) -> Any:
    """Turn JSON into values: lists become tuples, objects and names become their values."""
    axis = axis_of(hint)
    if axis is not None and axis.reads(value) and problem_of(hint, value):
        return axis.read(value, where)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _read(inner[0], value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(inner[1], item, f"{where} {key}") for key, item in value.items()}
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return read_value(hint, value, where)
    return value


def _tree(hint: Any, value: Any, where: str) -> Any:
    if axis_of(hint) is not None and (is_dataclass(value) or callable(value)):
        return axis_of(hint).write(value)
    if is_dataclass(value):
        return tree_of(value)
    if isinstance(value, tuple):
        inner = get_args(hint)[0] if get_origin(hint) is tuple else None
        return [_tree(inner, item, where) for item in value]
    if isinstance(value, dict):
        return {key: _tree(None, item, f"{where} {key}") for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"{where}={one_line(value, 60)} cannot be written to a file; use numbers, texts and named values")


def problem_of(hint: Any, value: Any) -> str | None:
    """The expected value, in words; None if the given one fits."""
    origin, inner = get_origin(hint), get_args(hint)
    if axis_of(hint) is not None and origin is Annotated:
        return axis_of(hint).problem(value)  # type: ignore[no-any-return]
    if origin is Annotated:
        rules = [rule for rule in inner[1:] if hasattr(rule, "problem")]
        return problem_of(inner[0], value) or next(filter(None, (rule.problem(value) for rule in rules)), None)
    if origin in (Union, types.UnionType):
        problems = [problem_of(option, value) for option in inner]
        return None if None in problems else " or ".join(str(problem) for problem in problems)
    if origin is tuple:
        if not isinstance(value, tuple):
            return "a list"
        return next((f"each item {text}" for text in (problem_of(inner[0], item) for item in value) if text), None)
    if origin is dict:
        if not isinstance(value, dict):
            return "an object with names"
        return next(filter(None, (problem_of(inner[1], item) for item in value.values())), None)
    return _plain_problem(hint, value)


def _plain_problem(hint: Any, value: Any) -> str | None:
    if hint is Any or getattr(hint, "_is_protocol", False):  # only the type checker checks protocols
        return None
    if hint is type(None):
        return None if value is None else "nothing"
    if hint is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
        return None if good else "a finite number"
    if hint is int:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    kind = get_origin(hint) or hint
    names = {bool: "true or false", str: "a text"}
    # A user's own class may state further rules; they are not checked here.
    return None if not isinstance(kind, type) or isinstance(value, kind) else names.get(kind, kind.__name__)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False
