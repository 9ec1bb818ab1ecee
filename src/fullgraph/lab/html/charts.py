"""Charts as SVG: lines, dots, stacked bars, a timeline, a heat map. Colours are classes of the page's style.

A chart carries its numbers as CSV, which the page offers beside it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fullgraph.lab.html.document import Safe, joined, tag
from fullgraph.lab.html.numbers import figure, log_ticks, thinned, ticks

Words = Callable[[float], str]  # formats a number
WIDTH, HEIGHT = 480.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 14.0, 10.0, 38.0
MOST_POINTS, MOST_MARKS = 240, 60
MOST_ROWS = 1000  # of a chart's CSV
END_LABELS = 6  # curves that are named at their right ends
LABEL_CHARS, CHAR = 20, 6.9  # longest label, and the width of a character
FORMULA = ("=", "+", "-", "@", "\t", "\r")
DASHES = (None, "7 3", "2 3", "9 3 2 3", "4 2 1 2")  # curves differ in these too, for readers who see few colours


class Chart(Safe):
    """A chart's element, and its numbers as CSV."""

    __slots__ = ("csv",)
    csv: str

    def __new__(cls, markup: str, table: Sequence[Sequence[object]]) -> Chart:
        chart = super().__new__(cls, markup)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [f"{cell:.7g}" if isinstance(cell, float) else _plain(cell) for cell in row] for row in table
        )
        chart.csv = text.getvalue()
        return chart


def _plain(cell: object) -> object:
    """A name that a spreadsheet does not take for a formula: it may come from somebody else's run."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULA else cell


class Line(NamedTuple):
    """A curve; `colour` is the number of its class."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dash: int = 0  # the number of its dashes


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
    log_x: bool = False, log_y: bool = False, from_zero: bool = False, best: tuple[float, str] | None = None,
) -> Chart:  # fmt: skip
    """Curves over a number; pointing at a shown point names it. best: a place that is marked, and its label."""
    points = [point for line in curves for point in line.points]
    log_x = log_x and all(place > 0 for place, _ in points)
    low = 0.0 if from_zero else min(value for _, value in points)
    named = 1 < len(curves) <= END_LABELS
    right = WIDTH - RIGHT - (CHAR * max(len(_short(line.name)) for line in curves) if named else 0.0)
    across = Scale(min(p for p, _ in points), max(p for p, _ in points), LEFT, right, log=log_x)
    up = Scale(low, max(value for _, value in points), HEIGHT - BOTTOM, TOP + 4, log=log_y)
    parts = [_axes(across, up, x, y, x_words, y_words)]
    if best is not None:
        place = across(best[0])
        parts.append(tag("line", x1=place, x2=place, y1=TOP, y2=HEIGHT - BOTTOM, class_="axis", stroke_dasharray="3 3"))
        parts.append(_text(place - 4 if place > WIDTH / 2 else place + 4, HEIGHT - BOTTOM - 6, best[1],
                           "end" if place > WIDTH / 2 else "start", "name"))  # fmt: skip
    for line in curves:
        kept = [(across(place), up(value)) for place, value in thinned(list(line.points), MOST_POINTS)]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in kept)
        parts.append(
            tag("path", d=path, class_=f"line c{line.colour}", stroke_dasharray=DASHES[line.dash % len(DASHES)])
        )
        for place, value in thinned(list(line.points), MOST_MARKS):
            said = f"{line.name}: {y_words(value)} at {x} {x_words(place)}"
            small, class_ = 2.2 if len(line.points) <= MOST_MARKS else 1.4, f"mark c{line.colour}"
            parts.append(tag("circle", tag("title", said), cx=across(place), cy=up(value), r=small, class_=class_))
    if named:
        ends = [(line.name, *line.points[-1]) for line in curves]
        parts += _end_labels([(name, across(place), up(value)) for name, place, value in ends])
    table = [("series", x, y), *(
        (line.name, *point) for line in curves for point in thinned(list(line.points), MOST_ROWS))]  # fmt: skip
    return _svg(parts, WIDTH, HEIGHT, title, table)


def _end_labels(ends: Sequence[tuple[str, float, float]]) -> list[Safe]:
    """Names of curves at their right ends, moved apart where they would lie on one another."""
    labels, taken = [], list[tuple[float, float]]()
    for name, x, y in sorted(ends, key=lambda end: end[2]):
        place = _free_place(x, min(y + 4, HEIGHT - BOTTOM), taken)
        labels.append(_text(x + 6, place, _short(name), "start"))
    return labels


def _free_place(x: float, y: float, taken: list[tuple[float, float]]) -> float:
    """The height nearest to `y` at which a label at `x` covers no other one; it is then taken."""
    room = CHAR * LABEL_CHARS
    offsets = (sign * step for step in range(0, int(HEIGHT), 4) for sign in (1, -1))
    inside = (y + offset for offset in offsets if TOP + 8 <= y + offset <= HEIGHT - BOTTOM)
    free = (at for at in inside if not any(abs(at - other) < 12 and abs(x - beside) < room for beside, other in taken))
    place = next(free, y)
    taken.append((x, place))
    return place


def _short(name: str) -> str:
    return name if len(name) <= LABEL_CHARS else f"{name[: LABEL_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}"


def dots(
    points: Sequence[tuple[str, float, float]], *, title: str, x: str, y: str, colours: Sequence[int],
    x_words: Words = figure, y_words: Words = figure, log_x: bool = False, spread: Sequence[float] = (),
    rings: Sequence[bool] = (),
) -> Chart:  # fmt: skip
    """Named points. spread: half of each point's interval of `y`. rings: points that stand out."""
    half = list(spread) or [0.0] * len(points)
    log_x = log_x and all(place > 0 for _, place, _ in points)
    places = [place for _, place, _ in points]
    room = 11 + CHAR * max(len(_short(name)) for name, _, _ in points)
    across = Scale(min(places), max(places), LEFT + 10, WIDTH - RIGHT - room, log=log_x)
    low, high = (f(v + s * h for (_, _, v), h in zip(points, half, strict=True)) for f, s in ((min, -1), (max, 1)))
    up = Scale(low, high, HEIGHT - BOTTOM - 8, TOP + 8)
    parts, taken = [_axes(across, up, x, y, x_words, y_words)], list[tuple[float, float]]()
    for number, ((name, place, value), wide) in enumerate(zip(points, half, strict=True)):
        a, b, colour = across(place), up(value), colours[number]
        said = f"{name}: {y_words(value)}{f' +- {y_words(wide)}' if wide else ''} at {x_words(place)}"
        if wide:
            parts.append(tag("line", x1=a, x2=a, y1=up(value - wide), y2=up(value + wide), class_=f"line c{colour}"))
        parts.append(tag("circle", tag("title", said), cx=a, cy=b, r=4.5, class_=f"mark c{colour}"))
        if rings and rings[number]:
            parts.append(tag("circle", cx=a, cy=b, r=8, class_="ring"))
        parts.append(_text(a + 11, _free_place(a, b + 4, taken), _short(name), "start"))
    table = [("name", x, y, "half interval"), *((*point, wide) for point, wide in zip(points, half, strict=True))]
    return _svg(parts, WIDTH, HEIGHT, title, table)


def _numbers(bars: Sequence[Bar]) -> list[Sequence[object]]:
    return [("bar", "piece", "value"), *((bar.label, said, value) for bar in bars for value, _, said in bar.pieces)]


def columns(bars: Sequence[Bar], *, title: str, x: str, y: str, y_words: Words = figure) -> Chart:
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
    return _svg(parts, WIDTH, HEIGHT, title, _numbers(bars))


def rows(
    bars: Sequence[Bar], *, title: str, x: str, x_words: Words = figure, thick: float = 18.0, wide: bool = False,
    spread: Sequence[float] = (),
) -> Chart:  # fmt: skip
    """Horizontal stacked bars, one below another. wide: across the page. spread: half of each bar's interval."""
    width = (2 if wide else 1) * WIDTH
    height = TOP + len(bars) * (thick + 6) + BOTTOM
    ends = [sum(piece[0] for piece in bar.pieces) for bar in bars]
    half = list(spread) or [0.0] * len(bars)
    top = max((end + more for end, more in zip(ends, half, strict=True)), default=0.0) or 1.0
    left = _label_room([bar.label for bar in bars])
    across = Scale(0.0, top, left, width - RIGHT)
    parts = [_bottom(across, height - BOTTOM, x, x_words, width, about=9 if wide else 5)]
    for place, bar in enumerate(bars):
        y, low = TOP + place * (thick + 6), 0.0
        parts.append(_text(left - 6, y + thick / 2 + 4, bar.label, "end"))
        for value, colour, said in bar.pieces:
            if value <= 0:
                continue
            edges = across(low), across(low + value)
            parts.append(_box(said, edges[0], y, max(0.4, edges[1] - edges[0]), thick, colour))
            low += value
        if half[place]:
            middle = y + thick / 2
            parts.append(tag("line", x1=across(max(0.0, low - half[place])), x2=across(low + half[place]), y1=middle,
                             y2=middle, class_="error"))  # fmt: skip
    return _svg(parts, width, height, title, _numbers(bars), wide=wide)


def timeline(lanes: Sequence[Lane], *, title: str, x: str, x_words: Words) -> Chart:
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
    table = [("lane", "start", "end", "what"), *(
        (lane.label, block.start, block.end, block.text) for lane in lanes for block in lane.blocks)]  # fmt: skip
    return _svg(parts, width, height, title, table, wide=True)


def heat(
    cells: Sequence[Sequence[float]], *, title: str, x: str, y: str, words: Callable[[int, int], str],
    rows: Sequence[str] = (), columns: Sequence[str] = (), shown: Words = figure, wide: bool = False, low: float = 0.0,
) -> Chart:  # fmt: skip
    """A table of cells, darker for larger values; few cells show their numbers. low: the value of the lightest."""
    across, down = max(map(len, cells), default=1), len(cells)
    names, heads = list(rows) or [str(r) for r in range(down)], list(columns) or [str(c) for c in range(across)]
    width, left = (2 if wide else 1) * WIDTH, max(LEFT, _label_room(names) + 16)
    broad = (width - left - RIGHT) / max(1, across)
    tall = min(broad if not wide else 26.0, max(8.0, 320 / max(1, down)))
    top = max((value for row in cells for value in row), default=1.0)
    span, high = (top - low) or 1.0, TOP + down * tall
    parts, rare, sparse = [], max(1, math.ceil(down / 32)), max(1, math.ceil(across * 34 / (width - left)))
    numbered = broad > 7 * max((len(shown(value)) for row in cells for value in row), default=1) and tall >= 15
    for r, row in enumerate(cells):
        for c, value in enumerate(row):
            share = max(0.0, min(1.0, (value - low) / span))
            box = tag("rect", tag("title", words(r, c)), x=left + c * broad, y=TOP + r * tall, width=broad - 0.6,
                      height=tall - 0.6, class_="cell c0", fill_opacity=round(0.06 + 0.94 * share, 3))  # fmt: skip
            parts.append(box)
            if numbered and value:
                dark = "onfill" if share > 0.55 else None
                middle = left + (c + 0.5) * broad, TOP + (r + 0.5) * tall + 4
                parts.append(_text(*middle, shown(value), "middle", dark))
        if r % rare == 0:
            parts.append(_text(left - 6, TOP + (r + 0.5) * tall + 4, names[r], "end"))
    parts += [_text(left + (c + 0.5) * broad, high + 14, heads[c], "middle") for c in range(0, across, sparse)]
    parts.append(_text((left + width - RIGHT) / 2, high + 30, x, "middle", "name"))
    parts.append(_upright(12.0, TOP + down * tall / 2, y))
    table = [(f"{y} \\ {x}", *heads), *((name, *map(float, row)) for name, row in zip(names, cells, strict=True))]
    return _svg(parts, width, high + BOTTOM, title, table, wide=wide)


def legend(names: Sequence[tuple[str, int]], dashes: Sequence[int] = ()) -> Safe:
    """Names and colours, below a chart; dashes: those of each curve."""
    items = []
    for place, (name, colour) in enumerate(names):
        dash = DASHES[dashes[place] % len(DASHES)] if dashes else None
        stroke = tag("line", x1=0, x2=30, y1=6, y2=6, class_=f"line c{colour}", stroke_dasharray=dash)
        drawn = tag("svg", stroke, viewBox="0 0 30 12", class_="key", aria_hidden="true")
        items.append(tag("li", drawn if dashes else tag("span", class_=f"swatch b{colour}"), name))
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


def _svg(
    parts: list[Safe], width: float, height: float, title: str, table: Sequence[Sequence[object]], *, wide: bool = False
) -> Chart:
    drawn = tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=title,
                class_="wide" if wide else None)  # fmt: skip
    return Chart(drawn, table)
