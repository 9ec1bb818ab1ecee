"""Show plans: tables for a terminal, pages for a browser."""

from collections.abc import Sequence
from io import StringIO

from fullgraph.lab.cost.cluster import Link
from fullgraph.lab.cost.plan import Choice, Plan
from fullgraph.lab.cost.replay import Piece
from fullgraph.lab.html.charts import Bar, Block, Lane, legend, rows, timeline
from fullgraph.lab.html.document import Safe, charts, document, figure, table, tag, tiles
from fullgraph.lab.html.numbers import count, seconds
from fullgraph.words import size

FOOT = "Predicted by fullgraph plan: a model of the machines, not a measurement."
WIDTH = 100
ERROR = 0.095  # the median error of 216 measured cells (docs/planning.md)
MOST_RANKS = 8  # in a chart
KINDS = ["work", "wait", "sum", "encode", "decode"]


def verdict(plan: Plan) -> str:
    """One sentence: the fastest exact strategy, and those within the error of the fastest."""
    fitting = [choice for choice in plan.choices if not choice.refused]
    if not fitting:
        return "No strategy fits these machines."
    exact = next((choice for choice in fitting if not choice.risk.kinds), None)
    begin = f"Fastest exact strategy: {exact.name}, {seconds(exact.epoch_s)} per epoch." if exact else "None is exact."
    tied = ties(fitting)
    if len(tied) == len(fitting) > 1:
        return f"{begin} All {len(fitting)} strategies are within the error of {ERROR:.1%} of the fastest."
    if len(tied) > 1:
        return f"{begin} {count(len(tied))} are within the error of {ERROR:.1%} of the fastest: {_named(tied)}."
    first = fitting[0]
    return begin if first is exact else f"{begin} Fastest of all: {first.name}, {seconds(first.epoch_s)}, {first.risk}."


def _named(choices: Sequence[Choice]) -> str:
    return ", ".join(choice.name for choice in choices)


def ties(fitting: Sequence[Choice]) -> list[Choice]:
    """The choices whose error bands overlap that of the fastest."""
    fastest = min(choice.epoch_s for choice in fitting)
    return [choice for choice in fitting if choice.epoch_s * (1 - ERROR) <= fastest * (1 + ERROR)]


def assumptions(plan: Plan) -> list[tuple[str, str]]:
    """What the prediction rests on, by name."""
    counts, cluster, rates = plan.counts, plan.cluster, plan.rates
    halo = "extrapolated from smaller partitions" if counts.even else "counted on the partition"
    where = "measured on this machine" if cluster.rates == "here" else f"of {cluster.rates}"
    found = [
        ("machines", f"{cluster.machines}, with {cluster.ranks_per_machine} ranks and {cluster.cores} cores each"),
        ("rates of work", f"{where}, {rates.device}, threads per rank: {rates.threads}"),
        ("halo rows", f"{sum(rank.whole.halo for rank in counts.ranks):,}, {halo}"),
        ("links inside a machine", _link(cluster.inside)),
    ]
    if cluster.machines > 1:
        found.append(("links between machines", _link(cluster.link)))
    told = "half of 216 measured cells were closer than 9.5 %, nine of ten closer than 24 %"
    found.append(("error", f"{told}, on CPUs; on GPUs it is unknown" if rates.device != "cpu" else told))
    return found


def _link(link: Link) -> str:
    return f"{link.bits_per_s / 1e9:.3g} Gbit/s, {seconds(link.latency_s)} until the first byte"


def plan_table(plan: Plan) -> str:
    fitting = [choice for choice in plan.choices if not choice.refused]
    tied = {choice.name for choice in ties(fitting)} if fitting else set()
    return _printed(
        f"{plan.counts.graph.name} on {plan.cluster.ranks} ranks",
        ["strategy", "epoch", "work", "rest", "bytes", "memory", "risk"],
        [_cells(choice, choice.name in tied and len(tied) > 1) for choice in plan.choices],
        [
            *([f"=: not told from the fastest, within {ERROR:.1%}"] if len(tied) > 1 else []),
            *(f"{choice.name}: {choice.refused}" for choice in plan.choices if choice.refused),
            verdict(plan),
        ],
    )


def _cells(choice: Choice, tied: bool = False) -> list[str]:
    if choice.prediction is None:
        return [choice.name, "-", "-", "-", "-", "-", "refused"]
    taken = choice.prediction.taken
    risk = "does not fit" if choice.refused else str(choice.risk)
    return [choice.name, f"{'= ' if tied else ''}{seconds(taken.epoch_s)}", seconds(taken.compute_s),
            seconds(_rest(choice)), size(taken.bytes), size(choice.memory_bytes), risk]  # fmt: skip


def _rest(choice: Choice) -> float:
    """Seconds of an epoch beyond the busiest rank's work: waiting, and sharing cores."""
    return max(0.0, choice.prediction.taken.epoch_s - choice.prediction.taken.compute_s) if choice.prediction else 0.0


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
    graph = plan.counts.graph
    head = [tag("p", verdict(plan), class_="verdict"),
            tiles([("graph", graph.name), ("nodes", count(graph.nodes)), ("edges", count(graph.arcs)),
                   ("ranks", str(plan.cluster.ranks)), ("device", plan.rates.device)])]  # fmt: skip
    chart = rows(bars, title="Predicted seconds per epoch", x="seconds per epoch", x_words=seconds, wide=True,
                 spread=[ERROR * choice.epoch_s for choice in fitting])  # fmt: skip
    about = f"Black lines: the error of {ERROR:.1%}. Strategies whose lines overlap that of the fastest are ties."
    key = legend([("work of the busiest rank", 0), ("the rest: waiting, and sharing cores", 1)])
    figures = [figure("An epoch of each strategy", chart, about=about, below=key, full=True)]
    if plan.pieces:
        shown = sorted({piece.rank for piece in plan.pieces})[:MOST_RANKS]
        key = legend([(kind, index) for index, kind in enumerate(KINDS)])
        title = f"A step of {plan.choices[0].name}"
        figures.append(figure(title, step_chart(plan.pieces, shown), below=key, full=True))
    usable = [choice for choice in plan.choices if not choice.refused]
    tied = {choice.name for choice in ties(usable)} if len(usable) > 1 else set()
    cells = [[*_cells(choice, choice.name in tied and len(tied) > 1), _wait(choice), choice.refused]
             for choice in plan.choices]  # fmt: skip
    names = [
        "strategy",
        "epoch",
        "work",
        "rest",
        "bytes",
        "memory per rank",
        "risk",
        "longest wait of a rank",
        "why not",
    ]
    sections: list[tuple[str, str, Sequence[Safe]]] = [
        ("epochs", "Predicted epochs", [charts(figures)]),
        ("all", "All figures", [table(names, cells, caption="= : not told from the fastest")]),
        ("assumed", "What this assumes", [table(("input", "value"), assumptions(plan), words=True)]),
    ]
    return document(f"Plan for {graph.name}", head, sections, FOOT)


def _wait(choice: Choice) -> str:
    return "-" if choice.prediction is None else seconds(choice.prediction.taken.wait_s)


def _parts(choice: Choice) -> list[tuple[float, int, str]]:
    assert choice.prediction is not None
    work, rest = choice.prediction.taken.compute_s, _rest(choice)
    return [(work, 0, f"{choice.name}: work {seconds(work)}"), (rest, 1, f"{choice.name}: rest {seconds(rest)}")]


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
