"""Parse KEY=VALUE,... into a frozen dataclass."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from fullgraph.errors import InputError, nearest, one_line
from fullgraph.values import read_option

T = TypeVar("T")


def parse_options(kind: str, cls: type[T], text: str) -> T:
    """Return `cls(**options)` for a value with int, float and bool fields; refuse unknown or malformed options."""
    known = {field.name: type(field.default) for field in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in known:
            told = f"{kind}: does not know '{one_line(key, 40)}'{nearest(key, known)}"
            raise InputError(f"{told}: choose from {', '.join(known)}")
        if key in values:
            raise InputError(f"{kind}: {key} is given twice: give it once")
        if not equals:
            raise InputError(f"{kind}: {key} has no value: write {key}=VALUE")
        values[key] = read_option(known[key], f"{kind}: {key}", value)
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{kind}: {error}") from None
