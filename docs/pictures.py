"""Draws the pictures of the documentation: python docs/pictures.py writes docs/images/*.svg."""

import json
import re
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(.+?)-none-random-3 --strategy (.+) --seed (\d+) --model (\w+) .*")
INK, GREY, PAPER = "#24292f", "#8c959f", "#ffffff"
RANKS = ("#2f6fb0", "#c2571a", "#2c8a57", "#8250a0")
TINTS = ("#dbe9f7", "#fbe4d5", "#d9f0e3", "#ecdff3")


class Picture:
    """An SVG that grows by shapes."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "none", dash: str = "") -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}" stroke="{stroke}" '
            f'stroke-dasharray="{dash}" stroke-width="1.5"/>'
        )

    def text(self, x: float, y: float, words: str, anchor: str = "middle", fill: str = INK, size: int = 13) -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">{escape(words)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = GREY, tip: bool = False, dash: str = ""
    ) -> None:
        end = ' marker-end="url(#tip)"' if tip else ""
        self.parts.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{stroke}" stroke-width="1.6" fill="none" '
            f'stroke-dasharray="{dash}"{end}/>'
        )

    def curve(self, start: tuple[float, float], end: tuple[float, float], bend: float, stroke: str) -> None:
        (x1, y1), (x2, y2) = start, end
        self.parts.append(
            f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 + bend:g} {x2:g} {y2:g}" stroke="{stroke}" '
            'stroke-width="1.6" fill="none" marker-end="url(#tip)"/>'
        )

    def node(self, x: float, y: float, label: str, fill: str, stroke: str, dash: str = "") -> None:
        self.parts.append(
            f'<circle cx="{x}" cy="{y}" r="14" fill="{fill}" stroke="{stroke}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        self.text(x, y + 4.5, label)

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def halo() -> Picture:
    """Two parts of a graph; each rank holds its own nodes and copies of the neighbours that the other owns."""
    picture = Picture(680, 250, "Two ranks, each with its own nodes and a halo")
    places = {"a": (70, 70), "b": (70, 150), "c": (150, 110), "d": (215, 60), "e": (215, 160)}
    for rank, left in enumerate((20, 350)):
        picture.box(left, 20, 310, 195, TINTS[rank])
        picture.text(left + 12, 40, f"rank {rank}", "start", RANKS[rank])
    own = [{name: (x + 10, y + 15) for name, (x, y) in places.items()}, {}]
    own[1] = {n: (660 - x + 10, y) for n, (x, y) in zip("fghij", own[0].values(), strict=True)}
    for nodes in own:
        names = list(nodes)
        for one, other in ((0, 2), (1, 2), (0, 1), (2, 3), (2, 4)):
            picture.line(*nodes[names[one]], *nodes[names[other]])
    copies = [("i", "d", 290, 75, 0), ("j", "e", 290, 175, 0), ("d", "i", 390, 75, 1), ("e", "j", 390, 175, 1)]
    for _, reader, x, y, rank in copies:
        picture.line(x, y, *own[rank][reader], dash="4 3")
    for rank, nodes in enumerate(own):
        for name, place in nodes.items():
            picture.node(*place, name, PAPER, RANKS[rank])
    for label, _, x, y, rank in copies:
        picture.node(x, y, label, TINTS[1 - rank], RANKS[1 - rank], "3 3")
    for label, _, x, y, rank in copies:  # from the owner's node to its copy
        (ox, oy), up = own[1 - rank][label], -1 if y < 120 else 1
        way = 1 if x > ox else -1
        picture.curve((ox, oy + 15 * up), (x - 6 * way, y + 15 * up), 16 * up, RANKS[1 - rank])
    picture.text(340, 238, "dashed: the halo, copies of rows that the other rank owns, sent anew for every layer")
    return picture


def staleness() -> Picture:
    """Fresh halos are waited for; late ones travel while the next step computes."""
    picture = Picture(680, 270, "Fresh halos are waited for, late ones travel behind the work")
    for row, (name, wait) in enumerate((("vanilla", 70), ("pipegcn", 0))):
        top, x = 30 + row * 120, 110.0
        picture.text(20, top + 19, name, "start", RANKS[row])
        picture.text(20, top + 63, "its messages", "start", GREY)
        for step in range(3):
            picture.box(x, top, 100, 28, TINTS[row], RANKS[row])
            picture.text(x + 50, top + 19, f"step {step}")
            picture.box(x + 20 if wait else x + 30, top + 44, 140 if wait else 100, 26, PAPER, GREY, "4 3")
            picture.text(x + 90 if wait else x + 80, top + 61, f"rows of step {step}", size=12)
            if wait:
                picture.box(x + 104, top, wait - 8, 28, "#f3f4f6", GREY)
                picture.text(x + 104 + (wait - 8) / 2, top + 19, "wait", fill=GREY)
                picture.line(x + 162, top + 44, x + 168, top + 30, GREY, tip=True)
            elif step < 2:
                picture.line(x + 130, top + 44, x + 150, top + 30, RANKS[row], tip=True)
            x += 100 + wait if wait else 108
    picture.text(340, 255, "pipegcn reads in step 1 what was sent in step 0: nobody waits, and rows are one step old")
    return picture


def mixture() -> Picture:
    """Rows for the dense update, columns for the sparse aggregation, and an exchange of tiles between the two."""
    picture = Picture(680, 260, "A mixture swaps blocks of rows for blocks of columns")
    for k in range(3):
        picture.box(60, 50 + 50 * k, 150, 46, TINTS[k], RANKS[k])
        picture.text(135, 78 + 50 * k, f"rank {k}: its rows")
        picture.box(270 + 50 * k, 50, 46, 146, TINTS[k], RANKS[k])
        picture.text(293 + 50 * k, 118, f"rank {k}")
        picture.text(293 + 50 * k, 136, "columns", size=11)
        picture.box(480, 50 + 50 * k, 150, 46, TINTS[k], RANKS[k])
        picture.text(555, 78 + 50 * k, f"rank {k}: its rows")
    picture.line(216, 122, 262, 122, INK, tip=True)
    picture.line(424, 122, 472, 122, INK, tip=True)
    picture.text(135, 36, "update: X W")
    picture.text(343, 36, "aggregation: A X")
    picture.text(555, 36, "update: X W")
    picture.text(340, 236, "every rank has the whole structure A; bytes do not depend on how many arcs are cut")
    return picture


def pipeline() -> Picture:
    """Chunks of the graph in time, layers over ranks."""
    picture = Picture(680, 240, "Layers over ranks, chunks of the graph in time")
    chunks, width = 4, 62
    for stage in range(3):
        top = 34 + 52 * stage
        first = 1 + 2 * stage
        picture.text(20, top + 24, f"rank {stage}: layers {first}, {first + 1}", "start", RANKS[stage])
        for chunk in range(chunks):
            x = 170 + (stage + chunk) * (width + 4)
            picture.box(x, top, width, 38, TINTS[stage], RANKS[stage])
            picture.text(x + width / 2, top + 24, f"chunk {chunk}")
            if stage < 2:
                picture.line(x + width - 6, top + 38, x + width + 8, top + 50, GREY, tip=True)
    picture.line(170, 196, 600, 196, GREY, tip=True)
    picture.text(615, 200, "time", "start", GREY)
    picture.text(
        340, 226, "a chunk goes from rank to rank once, however deep the model; of chunks to come, old rows are read"
    )
    return picture


def typed() -> Picture:
    """A typed graph on two ranks: shares of every type, one halo row for two relations, and a learned row."""
    picture = Picture(680, 270, "A typed graph on two ranks: each has its share of every type")
    kinds = {"paper": 1, "author": 2, "venue": 3}
    for rank, left in enumerate((20, 350)):
        picture.box(left, 20, 310, 215, PAPER, RANKS[rank])
        picture.text(left + 12, 40, f"rank {rank}", "start", RANKS[rank])
        for row, kind in enumerate(kinds):
            picture.text(left + 12, 79 + 60 * row, kind, "start", GREY)
    papers = [[(110, 75), (190, 75)], [(440, 75), (520, 75)]]
    authors = [[(110, 135), (190, 135)], [(440, 135), (520, 135)]]
    venue, copy = (520, 195), (270, 195)
    for rank in range(2):
        for author, paper in ((0, 0), (1, 1), (0, 1)):
            (x1, y1), (x2, y2) = authors[rank][author], papers[rank][paper]
            picture.line(x1 + (x2 > x1) * 11, y1 - 15, x2 - (x2 > x1) * 11, y2 + 15, tip=True)
    picture.text(84, 110, "writes", fill=GREY, size=11)
    picture.line(venue[0] - 8, venue[1] - 13, papers[1][0][0] + 8, papers[1][0][1] + 14, INK, tip=True)
    picture.line(venue[0], venue[1] - 15, authors[1][1][0], authors[1][1][1] + 16, INK, tip=True)
    for x2, y2 in (papers[0][1], authors[0][1]):
        picture.line(copy[0] - 8, copy[1] - 13, x2 + 13, y2 + 9, INK, tip=True, dash="4 3")
    picture.text(268, 110, "publishes", fill=INK, size=11)
    picture.text(232, 184, "employs", "end", fill=INK, size=11)
    for rank in range(2):
        for row, places in ((1, papers[rank]), (2, authors[rank])):
            for number, place in enumerate(places):
                picture.node(*place, f"{'pa'[row - 1]}{2 * rank + number + 1}", TINTS[row], RANKS[row])
    picture.node(*venue, "v1", TINTS[3], RANKS[3])
    picture.node(*copy, "v1", TINTS[3], RANKS[3], "3 3")
    picture.line(venue[0] - 14, 209, copy[0] + 16, 209, RANKS[3], tip=True)
    picture.box(556, 182, 92, 26, TINTS[3], RANKS[3])
    picture.text(602, 199, "learned row", size=12)
    text = "v1 has no features: rank 1 holds its learned row. Two relations on rank 0 read it, and it crosses once"
    picture.text(340, 257, text, size=12)
    return picture


LATENESS = ("pipegcn", "sylvie-a", "cd-r", "sancus", "bns", "varco", "pipegcn-gf", "sylvie-s", "adaqp", "steady")


def cells() -> dict[str, dict[str, tuple[float, float]]]:
    """Strategy -> graph and model -> (points against vanilla at the best validation score, share of its bytes)."""
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for line in (ROOT / "benchmarks" / "results" / "late_halos.jsonl").read_text().splitlines():
        run = json.loads(line)
        graph, strategy, seed, model = PART.fullmatch(run["command"]).groups()  # type: ignore[union-attr]
        if seed == "0":
            best = max(run["trace"], key=lambda score: score[1])
            found.setdefault(strategy, {})[f"{graph} {model}"] = 100 * best[2], run["trace"][-1][0]
    exact = found["vanilla"]
    return {
        name: {cell: (score - exact[cell][0], sent / exact[cell][1]) for cell, (score, sent) in runs.items()}
        for name, runs in found.items()
    }


def lateness() -> Picture:
    """Every cell of the campaign `late_halos` (seed 0): points against vanilla, by strategy."""
    left, right, top, step, low, high = 110, 560, 46, 28, -18, 6
    picture = Picture(700, top + step * len(LATENESS) + 50, "Test scores against vanilla, by strategy")
    at = lambda points: left + (right - left) * (points - low) / (high - low)  # noqa: E731
    bottom, found = top + step * len(LATENESS), cells()
    for points in range(low, high + 1, 3):
        picture.line(at(points), top - 8, at(points), bottom - 8, INK if points == 0 else "#eaeef2")
        picture.text(at(points), bottom + 10, f"{points:+d}" if points else "0", fill=GREY, size=12)
    under = "points against vanilla: 14 graphs x 2 models, random parts"
    picture.text((left + right) / 2, bottom + 32, under, fill=GREY)
    picture.text(630, 24, "bytes", fill=GREY)
    for row, name in enumerate(LATENESS):
        y, runs = top + step * row + 4, found[name].values()
        colour = RANKS[2] if name == "steady" else RANKS[0]
        picture.text(20, y + 4, name, "start")
        for points, _ in sorted(runs):
            shown = max(low, min(high, points))
            picture.parts.append(f'<circle cx="{at(shown):.1f}" cy="{y}" r="4.5" fill="{colour}" fill-opacity="0.45"/>')
        picture.text(630, y + 4, f"{sum(share for _, share in runs) / len(runs):.0%}")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "halo": halo,
    "staleness": staleness,
    "mixture": mixture,
    "pipeline": pipeline,
    "typed": typed,
    "lateness": lateness,
}

if __name__ == "__main__":
    folder = Path(__file__).parent / "images"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(str(draw()))
