"""Show plans: tables for a terminal, pages for a browser."""

from collections.abc import Sequence
from io import StringIO

from fullgraph.lab.cost.plan import Choice, Plan
from fullgraph.lab.cost.replay import Piece
from fullgraph.lab.html.charts import Bar, Block, Lane, legend, rows, timeline
from fullgraph.lab.html.document import Safe, charts, document, figure, table, tiles
from fullgraph.lab.html.numbers import count, seconds
from fullgraph.words import size

FOOT = "Predicted by fullgraph plan: a model of the machines, not a measurement."
WIDTH = 100
MOST_RANKS = 8  # in a chart
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
    head = [tiles([("graph", graph.name), ("nodes", count(graph.nodes)), ("edges", count(graph.arcs)),
                   ("ranks", str(plan.cluster.ranks)), ("device", plan.rates.device)])]  # fmt: skip
    found = figure(
        "An epoch of each strategy", rows(bars, title="seconds per epoch", x="seconds", x_words=seconds),
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
    names = ["strategy", "epoch", "work", "waits", "bytes", "memory per rank", "risk", "why not"]
    sections = [("epochs", "Predicted epochs", [charts(figures)]), ("all", "All figures", [table(names, cells)])]
    return document(f"Plan for {graph.name}", head, sections, FOOT)


def _parts(choice: Choice) -> list[tuple[float, int, str]]:
    assert choice.prediction is not None
    taken = choice.prediction.taken
    waits = max(0.0, taken.epoch_s - taken.compute_s)
    return [(taken.compute_s, 0, f"{choice.name}: work {seconds(taken.compute_s)}"),
            (waits, 1, f"{choice.name}: waits {seconds(waits)}")]  # fmt: skip


def step_chart(pieces: Sequence[Piece], ranks: Sequence[int]) -> Safe:
    """A chart of a predicted step of some ranks."""
    start = min((piece.start for piece in pieces), default=0.0)
    lanes = []
    for rank in ranks:
        for row in dict.fromkeys(piece.row for piece in pieces if piece.rank == rank):
            blocks = [Block(p.start - start, p.end - start, KINDS.index(p.kind), f"{p.kind} {seconds(p.end - p.start)}")
                      for p in pieces if p.rank == rank and p.row == row]  # fmt: skip
            lanes.append(Lane(f"rank {rank}, {row}", blocks))
    return timeline(lanes, title="a step", x="seconds", x_words=seconds)
