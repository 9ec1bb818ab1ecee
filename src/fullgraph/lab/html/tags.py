"""Elements of HTML and SVG; every text is escaped, unless it is an element itself.

A name from somebody else's run may hold line ends, and a program may read a page line by line: they are spelled out.
"""

from __future__ import annotations

from html import escape

from fullgraph.errors import printable

Attribute = str | int | float | bool | None


class Safe(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: Attribute) -> Safe:
    """<name key="value">children</name>;  class_ is class, stroke_width stroke-width; None is left out, True bare."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(printable(_number(value)))}"')
    inside = "".join(child if isinstance(child, Safe) else escape(printable(child)) for child in children)
    return Safe(f"<{' '.join(words)}>{inside}</{name}>" if name not in VOID else f"<{' '.join(words)}>")


VOID = {"meta", "br"}


def joined(parts: list[Safe]) -> Safe:
    return Safe("".join(parts))


def _number(value: str | int | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
