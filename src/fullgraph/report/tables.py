"""Tables for a person at a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullgraph.errors import one_line
from fullgraph.report.outcome import Outcome
from fullgraph.words import milliseconds, score, size


def print_quality(figures: Mapping[str, Any], method: str) -> None:
    """The quality of a cut: totals, then a row a rank."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{one_line(method, 40)}: {figures['edge_cut']:,} arcs cut, {figures['halo_rows']:,} halo rows"
    table = Table(title=Text(title))
    for column in ("rank", "nodes", "arcs", "halo", "training nodes"):
        table.add_column(column, justify="right")
    columns = zip(figures["nodes"], figures["edges"], figures["halo"], figures["train"], strict=True)
    for rank, row in enumerate(columns):
        table.add_row(str(rank), *(f"{value:,}" for value in row))
    table.add_section()
    imbalance = [f"{figures['node_imbalance']:.3f}", f"{figures['edge_imbalance']:.3f}"]
    table.add_row("max/mean", *imbalance, "", "")
    Console().print(table)


def print_result(run: Outcome, folder: Path) -> None:
    """A finished run: how good it was, what it cost, and what to do with it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    cells = {
        "strategy": run.strategy,
        "ranks": str(run.ranks),
        f"test {run.metric}": score(run.test),
        "val": score(run.val),
        "at epoch": str(run.best_epoch),
        "epoch": milliseconds(run.epoch_s),
        "waiting": milliseconds(run.wait_s),
        "bytes": size(run.bytes_per_epoch),
    }
    for head in cells:
        table.add_column(Text(one_line(head, 30)), justify="left" if head == "strategy" else "right", overflow="fold")
    table.add_row(*(Text(one_line(cell, 60)) for cell in cells.values()))  # as text: names may look like markup
    Console().print(table)
    print(f"run folder: {one_line(folder)}")


def print_next(commands: Mapping[str, str]) -> None:
    """Commands to go on with, and what each is for."""
    for line, what in commands.items():
        print(f"  {line}\n      {what}")
