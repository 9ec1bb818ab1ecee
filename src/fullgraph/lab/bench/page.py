"""bench.html: every cell of a campaign on one page."""

from collections.abc import Mapping, Sequence

from fullgraph.display import count
from fullgraph.errors import one_line
from fullgraph.lab.bench.cell import Cell
from fullgraph.lab.bench.tables import about, columns_of, notes, shape
from fullgraph.lab.html.charts import Bar, legend, rows
from fullgraph.lab.html.document import COLOURS, charts, document, figure, table
from fullgraph.lab.html.numbers import seconds
from fullgraph.lab.html.tags import Safe, tag

PAGE = "bench.html"
WAITING = 6  # the colour of no strategy
LABEL = 20  # characters that a chart has room for; a bar says the rest when pointed at


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
    """The epochs of one number of ranks, and what of them is waiting."""
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
        found.append(figure(f"Exposed wait {on}", chart, about="What no work hides, of the rank that waits longest."))
    return found


def _label(cell: Cell) -> str:
    return cell.strategy if cell.is_peer else f"{cell.rate}, {cell.strategy}"
