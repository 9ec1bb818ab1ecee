"""KEY=VALUE,... as a frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, TypeVar

from fullgraph.errors import InputError

T = TypeVar("T")


def parse_options(kind: str, cls: type[T], text: str) -> T:
    """`cls(**options)` for a dataclass of int, float and bool fields; unknown or malformed options are listed."""
    known = {field.name: type(field.default) for field in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if key not in known:
            raise InputError(f"{kind}: does not know '{key}': choose from {', '.join(known)}")
        if key in values:
            raise InputError(f"{kind}: {key} is given twice: give it once")
        if not equals:
            raise InputError(f"{kind}: {key} has no value: write {key}=VALUE")
        values[key] = _number(kind, key, value, known[key])
    return cls(**values)


def _number(kind: str, key: str, text: str, wanted: type[Any]) -> Any:
    try:
        number = float(text)
        if wanted is float and math.isfinite(number):
            return number
        if wanted is int and number.is_integer():
            return int(number) if "e" in text.lower() or "." in text else int(text)
        if wanted is bool and number in (0.0, 1.0):
            return bool(number)
    except (ValueError, OverflowError):
        pass
    name = {int: "a whole number", float: "a finite number", bool: "0 or 1"}[wanted]
    raise InputError(f"{kind}: {key}={text} has to be {name}: write {key}=VALUE")
