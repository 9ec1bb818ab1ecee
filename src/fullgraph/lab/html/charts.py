"""Charts as SVG: lines, stacked bars, a timeline, a heat map. Colours are classes of the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fullgraph.lab.html.document import Safe, joined, tag
from fullgraph.lab.html.numbers import figure, log_ticks, thinned, ticks

Words = Callable[[float], str]  # formats a number
WIDTH, HEIGHT = 480.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 14.0, 10.0, 38.0
MOST_POINTS, MOST_MARKS = 240, 60


class Line(NamedTuple):
    """A curve; `colour` is the number of its class."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


class Bar(NamedTuple):
    """Stacked pieces: (value, colour, text when pointed at)."""

    label: str
    pieces: Sequence[tuple[float, int, str]]


class Block(NamedTuple):
    """A piece of a timeline's row."""

    start: float
    end: float
    colour: int
    text: str


class Lane(NamedTuple):
    """A row of a timeline; thin rows stand below the row they belong to."""

    label: str
    blocks: Sequence[Block]
    thin: bool = False


class Scale:
    """Maps numbers to places on an axis."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        self.log = log and low > 0
        if high <= low:
            low, high = (low / 2, high * 2) if self.log else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.log else (
            self.low, self.high, value)  # fmt: skip
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, about)


def lines(
    curves: Sequence[Line], *, title: str, x: str, y: str, x_words: Words = figure, y_words: Words = figure,
    log_x: bool = False, log_y: bool = False, from_zero: bool = False,
) -> Safe:  # fmt: skip
    """Curves over a number; pointing at a shown point names it."""
    points = [point for line in curves for point in line.points]
    log_x = log_x and all(place > 0 for place, _ in points)
    low = 0.0 if from_zero else min(value for _, value in points)
    across = Scale(min(p for p, _ in points), max(p for p, _ in points), LEFT, WIDTH - RIGHT, log=log_x)
    up = Scale(low, max(value for _, value in points), HEIGHT - BOTTOM, TOP + 4, log=log_y)
    parts = [_axes(across, up, x, y, x_words, y_words)]
    for line in curves:
        kept = [(across(place), up(value)) for place, value in thinned(list(line.points), MOST_POINTS)]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in kept)
        parts.append(
            tag("path", d=path, class_=f"line c{line.colour}", stroke_dasharray="5 3" if line.dashed else None)
        )
        for place, value in thinned(list(line.points), MOST_MARKS):
            said = f"{line.name}: {y_words(value)} at {x} {x_words(place)}"
            small, class_ = 2.2 if len(line.points) <= MOST_MARKS else 1.4, f"mark c{line.colour}"
            parts.append(tag("circle", tag("title", said), cx=across(place), cy=up(value), r=small, class_=class_))
    return _svg(parts, WIDTH, HEIGHT, title)


def columns(bars: Sequence[Bar], *, title: str, x: str, y: str, y_words: Words = figure) -> Safe:
    """Upright stacked bars; labels without room are left out."""
    top = max((sum(piece[0] for piece in bar.pieces) for bar in bars), default=0.0) or 1.0
    up = Scale(0.0, top, HEIGHT - BOTTOM, TOP + 4)
    parts = [_axes(None, up, x, y, figure, y_words)]
    room = (WIDTH - LEFT - RIGHT) / max(1, len(bars))
    every = max(1, math.ceil(len(bars) / 12))
    for place, bar in enumerate(bars):
        left, low = LEFT + place * room, 0.0
        for value, colour, said in bar.pieces:
            if value <= 0:
                continue
            edges = up(low + value), up(low)
            box = left + room * 0.1, edges[0], max(0.5, room * 0.8), max(0.0, edges[1] - edges[0])
            parts.append(_box(said, *box, colour))
            low += value
        if place % every == 0:
            parts.append(_text(left + room / 2, HEIGHT - BOTTOM + 14, bar.label, "middle"))
    return _svg(parts, WIDTH, HEIGHT, title)


def rows(bars: Sequence[Bar], *, title: str, x: str, x_words: Words = figure, thick: float = 18.0) -> Safe:
    """Horizontal stacked bars, one below another."""
    height = TOP + len(bars) * (thick + 6) + BOTTOM
    top = max((sum(piece[0] for piece in bar.pieces) for bar in bars), default=0.0) or 1.0
    left = _label_room([bar.label for bar in bars])
    across = Scale(0.0, top, left, WIDTH - RIGHT)
    parts = [_bottom(across, height - BOTTOM, x, x_words)]
    for place, bar in enumerate(bars):
        y, low = TOP + place * (thick + 6), 0.0
        parts.append(_text(left - 6, y + thick / 2 + 4, bar.label, "end"))
        for value, colour, said in bar.pieces:
            if value <= 0:
                continue
            edges = across(low), across(low + value)
            parts.append(_box(said, edges[0], y, max(0.4, edges[1] - edges[0]), thick, colour))
            low += value
    return _svg(parts, WIDTH, height, title)


def timeline(lanes: Sequence[Lane], *, title: str, x: str, x_words: Words) -> Safe:
    """A row of bars per name, on one axis of time."""
    width, thick, thin = 2 * WIDTH, 22.0, 9.0
    left = _label_room([lane.label for lane in lanes])
    height = TOP + BOTTOM + sum((thin if lane.thin else thick) + 4 for lane in lanes)
    first = min((block.start for lane in lanes for block in lane.blocks), default=0.0)
    last = max((block.end for lane in lanes for block in lane.blocks), default=1.0)
    across = Scale(first, last, left, width - RIGHT)
    parts, y = [_bottom(across, height - BOTTOM, x, x_words, width, about=9)], TOP
    for lane in lanes:
        tall = thin if lane.thin else thick
        parts.append(_text(left - 6, y + tall / 2 + 4, lane.label, "end", "small" if lane.thin else None))
        for block in lane.blocks:
            edges = across(block.start), across(block.end)
            parts.append(_box(block.text, edges[0], y, max(0.5, edges[1] - edges[0]), tall, block.colour))
        y += tall + 4
    return _svg(parts, width, height, title, wide=True)


def heat(cells: Sequence[Sequence[float]], *, title: str, x: str, y: str, words: Callable[[int, int], str]) -> Safe:
    """A square of cells, darker for larger values; with few cells, each shows its number."""
    n = len(cells)
    side = min(WIDTH - LEFT - RIGHT, 300.0)
    cell, top = side / max(1, n), max((max(row) for row in cells), default=0.0) or 1.0
    every, parts = max(1, math.ceil(n / 12)), list[Safe]()
    for r, row in enumerate(cells):
        for c, value in enumerate(row):
            share = value / top
            box = tag("rect", tag("title", words(r, c)), x=LEFT + c * cell, y=TOP + r * cell, width=cell - 1,
                      height=cell - 1, class_="cell c0", fill_opacity=round(0.06 + 0.94 * share, 3))  # fmt: skip
            parts.append(box)
            if n <= 6 and value:
                dark = "onfill" if share > 0.55 else None
                parts.append(_text(LEFT + (c + 0.5) * cell, TOP + (r + 0.5) * cell + 4, figure(value), "middle", dark))
        if r % every == 0:
            parts.append(_text(LEFT - 6, TOP + (r + 0.5) * cell + 4, str(r), "end"))
            parts.append(_text(LEFT + (r + 0.5) * cell, TOP + side + 14, str(r), "middle"))
    parts.append(_text(LEFT + side / 2, TOP + side + 30, x, "middle", "name"))
    parts.append(_upright(14.0, TOP + side / 2, y))
    return _svg(parts, WIDTH, TOP + side + BOTTOM, title)


def legend(names: Sequence[tuple[str, int]], dashed: Sequence[str] = ()) -> Safe:
    """Names and colours, below a chart."""
    items = [
        tag("li", tag("span", class_=f"swatch b{colour}" + (" dashed" if name in dashed else "")), name)
        for name, colour in names
    ]
    return tag("ul", *items, class_="legend")


def _axes(across: Scale | None, up: Scale, x: str, y: str, x_words: Words, y_words: Words) -> Safe:
    parts = []
    for value in up.ticks():
        place = up(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, class_="grid"))
        parts.append(_text(LEFT - 6, place + 4, y_words(value), "end"))
    parts.append(_upright(12.0, (TOP + HEIGHT - BOTTOM) / 2, y))
    if across is None:
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM, class_="axis"))
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x, "middle", "name"))
    else:
        parts.append(_bottom(across, HEIGHT - BOTTOM, x, x_words))
    return joined(parts)


def _bottom(across: Scale, y: float, name: str, words: Words, width: float = WIDTH, about: int = 5) -> Safe:
    parts = [tag("line", x1=across.start, x2=across.end, y1=y, y2=y, class_="axis")]
    for value in across.ticks(about):
        place = across(value)
        parts.append(tag("line", x1=place, x2=place, y1=y, y2=y + 4, class_="axis"))
        anchor = "end" if place > width - 30 else "middle"
        parts.append(_text(min(place, width - 2), y + 16, words(value), anchor))
    parts.append(_text((across.start + across.end) / 2, y + 32, name, "middle", "name"))
    return joined(parts)


def _label_room(labels: Sequence[str]) -> float:
    return min(150.0, 14 + 6.8 * max(map(len, labels), default=1))


def _box(said: str, x: float, y: float, width: float, height: float, colour: int) -> Safe:
    return tag("rect", tag("title", said), x=x, y=y, width=width, height=height, class_=f"fill c{colour}")


def _text(x: float, y: float, text: str, anchor: str, class_: str | None = None) -> Safe:
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def _upright(x: float, y: float, text: str) -> Safe:
    return tag("text", text, x=x, y=y, text_anchor="middle", class_="name", transform=f"rotate(-90 {x:g} {y:g})")


def _svg(parts: list[Safe], width: float, height: float, title: str, *, wide: bool = False) -> Safe:
    return tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=title,
               class_="wide" if wide else None)  # fmt: skip
