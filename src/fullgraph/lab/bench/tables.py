"""Cells for people: Markdown with all figures, some of them on a terminal, and bench.html with every cell."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fullgraph.errors import one_line
from fullgraph.lab.bench.cell import Cell
from fullgraph.lab.html.charts import Bar, legend, rows
from fullgraph.lab.html.document import COLOURS, Safe, charts, document, figure, table, tag
from fullgraph.lab.html.numbers import seconds
from fullgraph.words import count, duration, milliseconds, score, size

TABLE = "table.md"
COLUMNS = 80  # width of a terminal
NEIGHBOURS = "PyG's NeighborLoader is not among the peers: it samples only with pyg-lib or torch-sparse."
LEGEND = (
    "C: an epoch's work without a halo (strategy `none` in the same job, without its waiting). M: one step's messages, "
    "sent again while nothing else runs. Waiting: exposed wait of the rank that waits longest. Bytes: feature rows and "
    "their gradients, all ranks. Compare only times with equal ranks and rate: they come from one job."
)
Figure = Callable[[Cell], str]


def about(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Cells by graph and model; cells of one job stand together."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        where = f"{cell.model} on {cell.graph}" + ("" if cell.device == "cpu" else f", {cell.device}")
        found.setdefault(where, []).append(cell)
    return {where: sorted(of_one, key=lambda cell: (cell.is_peer, cell.ranks)) for where, of_one in found.items()}


def shape(cell: Cell) -> str:
    """One line about the graph and the machine."""
    machine = f"{cell.cores} cores, torch {cell.versions.get('torch', '?')}"
    return f"{cell.nodes:,} nodes, {cell.arcs:,} edges, {cell.features} features; {machine}"


def to_vanilla(cells: Iterable[Cell]) -> Figure:
    """The speed relative to `vanilla` in the same job."""
    base = {(cell.group, cell.device, cell.all_rows): cell.epoch_s for cell in cells if cell.strategy == "vanilla"}

    def ratio(cell: Cell) -> str:
        known = base.get((cell.group, cell.device, cell.all_rows))
        return "" if known is None or not cell.epoch_s else f"{known / cell.epoch_s:.2f}x"

    return ratio


def _if_any(value: float | None, words: Callable[[float], str]) -> str:
    return "" if value is None else words(value)


WHERE: Mapping[str, Figure] = {
    "ranks": lambda c: str(c.ranks),
    "rate": lambda c: c.rate,
    "strategy": lambda c: one_line(c.strategy, 60),
}
TIMES: Mapping[str, Figure] = {
    "epoch": lambda c: milliseconds(c.epoch_s),
    "C": lambda c: milliseconds(c.compute_s),
    "M": lambda c: milliseconds(c.messages_s),
    "waiting": lambda c: milliseconds(c.wait_s),
    "bytes": lambda c: size(c.bytes),
}
MORE: Mapping[str, Figure] = {
    "on the links": lambda c: _if_any(c.wire_bytes, size),
    "processor": lambda c: milliseconds(c.processor_s),
    "memory": lambda c: size(c.peak_memory_bytes),
    "on the GPU": lambda c: size(c.peak_device_bytes) if c.peak_device_bytes else "",
}
SCORES: Mapping[str, Figure] = {
    "val": lambda c: _if_any(c.val, score),
    "at epoch": lambda c: str(c.best_epoch) if c.val is not None else "",
    "after": lambda c: _if_any(c.val_s, duration),
}


def columns_of(cells: Sequence[Cell]) -> dict[str, Figure]:
    """All columns that have a figure in some cell."""
    columns = {**WHERE, **TIMES, "to vanilla": to_vanilla(cells), **MORE, **SCORES}
    return {head: words for head, words in columns.items() if any(words(cell) for cell in cells)}


def notes(cells: Iterable[Cell]) -> list[str]:
    """Notes that a reader needs beside the figures."""
    return [LEGEND, *([NEIGHBOURS] if any(cell.is_peer for cell in cells) else [])]


def markdown(cells: Sequence[Cell], failed: Mapping[str, str]) -> str:
    """One table per graph and model."""
    parts = ["# Benchmark\n", *(f"{note}\n" for note in notes(cells))]
    for where, of_one in about(cells).items():
        columns = columns_of(of_one)
        rows = [[words(cell) for words in columns.values()] for cell in of_one]
        lines = [list(columns), ["---"] * len(columns), *rows]
        parts += [f"## {_plain(where)}\n", f"{shape(of_one[0])}\n"]
        parts += ["\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines) + "\n"]
    if failed:
        parts += ["## Failed\n", *(f"- {_plain(where)}: {_plain(why)}" for where, why in failed.items()), ""]
    return "\n".join(parts)


def _plain(text: str) -> str:
    return one_line(text, 400).replace("|", "\\|")


def print_cells(cells: Sequence[Cell]) -> None:
    """Print times, and scores if there are any, in 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=COLUMNS)
    for where, of_one in about(cells).items():
        for columns in (TIMES, SCORES):
            shown = [cell for cell in of_one if any(words(cell) for words in columns.values())]
            if not shown:
                continue
            table = Table(title=Text(one_line(where, 200)), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
            table.padding = (0, 1, 0, 0)
            for head in (*WHERE, *columns):
                table.add_column(head, justify="left" if head in WHERE else "right", overflow="fold")
            for cell in shown:  # as Text, because names may look like markup
                table.add_row(*(Text(words(cell)) for words in (*WHERE.values(), *columns.values())))
            console.print(table)


PAGE = "bench.html"
WAITING = 6  # a colour that no strategy has
LABEL = 20  # characters that a chart has room for; pointing at a bar shows the rest


def page(cells: Sequence[Cell], failed: Mapping[str, str]) -> str:
    head = [tag("p", note) for note in notes(cells)]
    sections: list[tuple[str, str, Sequence[Safe]]] = [
        (f"part-{number}", where, _section(of_one)) for number, (where, of_one) in enumerate(about(cells).items())
    ]
    if failed:
        items = [tag("li", f"{where}: {why}") for where, why in failed.items()]
        sections.append(("failed", "Failed", [tag("ul", *items)]))
    return document(f"Benchmark of {count(len(cells), 'cell')}", head, sections, "fullgraph bench")


def _section(cells: Sequence[Cell]) -> list[Safe]:
    columns = columns_of(cells)
    figures = [
        chart
        for ranks in dict.fromkeys(cell.ranks for cell in cells if not cell.is_peer)
        for chart in _charts([c for c in cells if c.ranks == ranks or c.is_peer], ranks)
    ]
    body = [[words(cell) for words in columns.values()] for cell in cells]
    return [tag("p", shape(cells[0])), charts(figures), table(list(columns), body, caption="All figures")]


def _charts(cells: Sequence[Cell], ranks: int) -> list[Safe]:
    """Charts of epoch times and waiting times of the cells with this number of ranks."""
    free = [colour for colour in range(COLOURS) if colour != WAITING]
    names = dict.fromkeys(cell.strategy for cell in cells)
    colours = {name: free[place % len(free)] for place, name in enumerate(names)}
    on = f"on {count(ranks, 'rank')}"
    epochs, waits = [], []
    for cell in cells:
        label, wait_s = _label(cell), min(cell.wait_s, cell.epoch_s)
        wait = f"{label}: waits {seconds(cell.wait_s)}"
        work = cell.epoch_s - wait_s, colours[cell.strategy], f"{label}: epoch {seconds(cell.epoch_s)}"
        epochs.append(Bar(one_line(label, LABEL), [work, (wait_s, WAITING, wait)]))
        if not cell.is_peer:
            waits.append(Bar(one_line(label, LABEL), [(cell.wait_s, colours[cell.strategy], wait)]))
    key = legend([*colours.items(), ("waiting", WAITING)])
    told = "Seconds of an epoch; the grey part is waiting."
    found = [
        figure(f"Epoch {on}", rows(epochs, title=f"Epoch {on}", x="seconds", x_words=seconds), about=told, below=key)
    ]
    if ranks > 1:
        chart = rows(waits, title=f"Exposed wait {on}", x="seconds", x_words=seconds)
        found.append(figure(f"Exposed wait {on}", chart, about="Waiting that no work hides; the worst rank."))
    return found


def _label(cell: Cell) -> str:
    return cell.strategy if cell.is_peer else f"{cell.rate}, {cell.strategy}"
