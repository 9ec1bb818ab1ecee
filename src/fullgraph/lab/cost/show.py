"""Plans and sweeps for people: tables for a terminal, pages for a browser."""

from collections.abc import Sequence
from io import StringIO
from typing import Any

from fullgraph.lab.cost.choose import Choice
from fullgraph.lab.cost.plan import Plan
from fullgraph.lab.cost.replay import Piece
from fullgraph.lab.cost.scale import Limit, Point, limits
from fullgraph.lab.html.charts import Bar, Block, Lane, Line, legend, lines, rows, timeline
from fullgraph.lab.html.document import charts, document, figure, table, tiles
from fullgraph.lab.html.numbers import count, seconds, size
from fullgraph.lab.html.tags import Safe

FOOT = "Foretold by fullgraph plan: a model of the machines, not a measurement."
SCALE_FOOT = "Foretold by fullgraph simulate: a model of the machines, not a measurement."
WIDTH = 100
MOST_RANKS = 8  # in a picture
KINDS = ["work", "wait", "sum", "encode", "decode"]


def plan_table(plan: Plan) -> str:
    return _printed(
        f"{plan.counts.graph.name} on {plan.cluster.ranks} ranks",
        ["strategy", "epoch", "work", "waits", "bytes", "memory", "risk"],
        [_cells(choice) for choice in plan.choices],
        [f"{choice.name}: {choice.refused}" for choice in plan.choices if choice.refused],
    )


def _cells(choice: Choice) -> list[str]:
    if choice.prediction is None:
        return [choice.name, "-", "-", "-", "-", "-", "refused"]
    taken = choice.prediction.taken
    risk = "does not fit" if choice.refused else str(choice.risk)
    return [choice.name, seconds(taken.epoch_s), seconds(taken.compute_s), seconds(taken.wait_s), size(taken.bytes),
            size(choice.memory_bytes), risk]  # fmt: skip


def _printed(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="right" if 0 < index < len(columns) - 1 else "left", overflow="fold")
    for row in cells:
        shown.add_row(*row)
    text = StringIO()
    Console(file=text, width=WIDTH).print(shown)
    return "\n".join([text.getvalue().rstrip(), *notes])


def plan_page(plan: Plan) -> str:
    fitting = [choice for choice in plan.choices if choice.prediction is not None]
    bars = [Bar(choice.name, _parts(choice)) for choice in fitting]
    bar_names = ["work", "waits for messages"]
    graph = plan.counts.graph
    head = [tiles([("graph", graph.name), ("nodes", count(graph.nodes)), ("arcs", count(graph.arcs)),
                   ("ranks", str(plan.cluster.ranks)), ("device", plan.rates.device)])]  # fmt: skip
    found = figure(
        "An epoch of each strategy", rows(bars, title="seconds an epoch", x="seconds", x_words=seconds),
        below=legend([(name, index) for index, name in enumerate(bar_names)]), full=True,
    )  # fmt: skip
    figures = [found]
    if plan.pieces:
        shown = sorted({piece.rank for piece in plan.pieces})[:MOST_RANKS]
        title = f"A step of {plan.choices[0].name}"
        figures.append(
            figure(
                title,
                step_chart(plan.pieces, shown),
                below=legend([(kind, index) for index, kind in enumerate(KINDS)]),
                full=True,
            )
        )
    cells = [[*_cells(choice), choice.refused] for choice in plan.choices]
    names = ["strategy", "epoch", "work", "waits", "bytes", "memory a rank", "risk", "why not"]
    sections = [("epochs", "What an epoch takes", [charts(figures)]), ("all", "All figures", [table(names, cells)])]
    return document(f"Plan for {graph.name}", head, sections, FOOT)


def _parts(choice: Choice) -> list[tuple[float, int, str]]:
    assert choice.prediction is not None
    taken = choice.prediction.taken
    waits = max(0.0, taken.epoch_s - taken.compute_s)
    return [(taken.compute_s, 0, f"{choice.name}: work {seconds(taken.compute_s)}"),
            (waits, 1, f"{choice.name}: waits {seconds(waits)}")]  # fmt: skip


def limits_tree(points: Sequence[Point]) -> dict[str, Any]:
    curves = {
        name: [{"ranks": p.ranks, "epoch_s": p.choices[name].epoch_s, "memory_bytes": p.choices[name].memory_bytes}
               for p in points if not p.choices[name].refused]
        for name in points[0].choices
    }  # fmt: skip
    found = [{"strategy": limit.name, "ranks": limit.ranks, "epoch_s": limit.epoch_s, "reason": limit.reason}
             for limit in limits(points)]  # fmt: skip
    return {"limits": found, "curves": curves}


def scale_table(name: str, device: str, points: Sequence[Point], found: Sequence[Limit]) -> str:
    wanted = [limit.name for limit in found]
    cells = [[limit.name, *(_at(point, limit.name) for point in _some(points)), str(limit.ranks)] for limit in found]
    columns = ["strategy", *(str(point.ranks) for point in _some(points)), "gains up to"]
    notes = [f"{limit.name} stops at {limit.ranks}: {limit.reason}" for limit in found
             if limit.reason != "it still gains"]  # fmt: skip
    other = {n: c.refused for p in points for n, c in p.choices.items() if c.refused and n not in wanted}
    notes += [f"{n}: {why}" for n, why in other.items()]
    return _printed(f"{name} on {device}: an epoch by number of devices", columns, cells, notes)


def _some(points: Sequence[Point], most: int = 7) -> list[Point]:
    """Enough for a table."""
    step = -(-len(points) // most)
    return list(points[::-1][::step])[::-1]


def _at(point: Point, name: str) -> str:
    choice = point.choices.get(name)
    return "-" if choice is None or choice.refused else seconds(choice.epoch_s)


def scale_page(name: str, device: str, points: Sequence[Point]) -> str:
    found = limits(points)
    curves = []
    for index, limit in enumerate(found):
        line = [(float(p.ranks), p.choices[limit.name].epoch_s) for p in points if not p.choices[limit.name].refused]
        curves.append(Line(limit.name, line, index))
    chart = lines(curves, title="seconds an epoch", x="devices", y="seconds", y_words=seconds, log_x=True, log_y=True)
    names = legend([(limit.name, index) for index, limit in enumerate(found)])
    cells = [[limit.name, limit.ranks, seconds(limit.epoch_s), limit.reason] for limit in found]
    sections: list[tuple[str, str, list[Safe]]] = [
        ("curves", "An epoch by number of devices", [charts([figure("Scaling", chart, below=names, full=True)])]),
        ("limits", "Where each strategy stops gaining", [table(["strategy", "devices", "epoch", "why"], cells)]),
    ]
    return document(f"{name} on {device}", [], sections, SCALE_FOOT)


def step_chart(pieces: Sequence[Piece], ranks: Sequence[int]) -> Safe:
    """A step of some ranks as it was foretold."""
    start = min((piece.start for piece in pieces), default=0.0)
    lanes = []
    for rank in ranks:
        for row in dict.fromkeys(piece.row for piece in pieces if piece.rank == rank):
            blocks = [Block(p.start - start, p.end - start, KINDS.index(p.kind), f"{p.kind} {seconds(p.end - p.start)}")
                      for p in pieces if p.rank == rank and p.row == row]  # fmt: skip
            lanes.append(Lane(f"rank {rank}, {row}", blocks))
    return timeline(lanes, title="a step", x="seconds", x_words=seconds)
