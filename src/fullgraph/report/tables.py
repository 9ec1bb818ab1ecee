"""Tables for a terminal, and the outcome of a finished run: the part of result.json that they show, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from fullgraph.errors import one_line, printable
from fullgraph.report.record import Bytes, Seconds
from fullgraph.storage import read_document, record_of
from fullgraph.values import Range, Value
from fullgraph.words import milliseconds, score, size

PAGE = "report.html"  # present if the run was trained with `report`
FIX = "name the folder of a finished run"


@dataclass(frozen=True, kw_only=True)
class Outcome(Value):
    """The scores and the cost of a run."""

    schema: Annotated[int, Range(1, 1)]
    strategy: str
    model: str
    ranks: Annotated[int, Range(1, 65535)]
    epochs: Annotated[int, Range(1, 10**9)]
    metric: str
    smaller_is_better: bool = False
    best_epoch: Annotated[int, Range(0, 10**9)]  # 0: the run has no score
    test: float | None
    val: float | None
    epoch_s: Seconds
    wait_s: Seconds
    bytes_per_epoch: Bytes
    bytes_total: Bytes


def read_outcome(folder: Path) -> Outcome:
    """Read the outcome of the run in `folder`; result.json also holds keys that are not read here."""
    path = folder / "result.json"
    tree = read_document(path, fix=FIX)
    known = {field.name: tree[field.name] for field in fields(Outcome) if field.name in tree}
    known = {name: printable(value) if isinstance(value, str) else value for name, value in known.items()}
    return record_of(Outcome, known, str(path), FIX)


def print_quality(figures: Mapping[str, Any], method: str) -> None:
    """Print the quality of a partition: totals, then one row per rank."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{one_line(method, 40)}: {figures['edge_cut']:,} edges cut, {figures['halo_rows']:,} halo rows"
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
    """Print a finished run: its scores, its cost, and the next commands."""
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
    table.add_row(*(Text(one_line(cell, 60)) for cell in cells.values()))  # as Text, because names may look like markup
    Console().print(table)
    print(f"run folder: {one_line(folder)}")


def print_next(commands: Mapping[str, str]) -> None:
    """Print the next commands, each with its purpose."""
    for line, what in commands.items():
        print(f"  {line}\n      {what}")
