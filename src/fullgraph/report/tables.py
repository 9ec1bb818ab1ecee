"""Tables for a terminal, and the outcome of a finished run: the part of result.json that they show, checked.

Finished runs are compared in a table of 80 columns for a person, in CSV or JSON for a program.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from fullgraph.errors import one_line, printable
from fullgraph.report.record import Bytes, Seconds, read_metrics, seconds_to
from fullgraph.storage import read_document, record_of
from fullgraph.values import Range, Value
from fullgraph.words import count, duration, milliseconds, score, size

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
    """Print the quality of a partition: totals, one row per rank, then one per node type of a typed graph."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{one_line(method, 40)}: {figures['edge_cut']:,} edges cut, {figures['halo_rows']:,} halo rows"
    if "covered_rows" in figures:
        title += f" ({figures['covered_rows']:,} with sums)"
    table = Table(title=Text(title))
    for column in ("rank", "nodes", "edges", "halo", "training nodes"):
        table.add_column(column, justify="right")
    columns = zip(figures["nodes"], figures["edges"], figures["halo"], figures["train"], strict=True)
    for rank, row in enumerate(columns):
        table.add_row(str(rank), *(f"{value:,}" for value in row))
    table.add_section()
    imbalance = [f"{figures['node_imbalance']:.3f}", f"{figures['edge_imbalance']:.3f}"]
    table.add_row("max/mean", *imbalance, "", "")
    Console().print(table)
    if (between := figures.get("between_hosts")) is not None:
        print(
            f"between {between['hosts']:,} hosts: {between['rows']:,} halo rows ({between['covered']:,} with sums), "
            f"if a row crosses once for all ranks of a host; else {between['rows_alone']:,} "
            f"({between['covered_alone']:,})"
        )
    if not figures["types"]:
        return
    by_type = Table(title=Text("by node type, over ranks"))
    by_type.add_column("type")
    for column in ("least nodes", "most nodes", "max/mean", "halo rows"):
        by_type.add_column(column, justify="right")
    for own in figures["types"]:
        cells = f"{min(own['nodes']):,}", f"{max(own['nodes']):,}", f"{own['node_imbalance']:.3f}"
        by_type.add_row(Text(one_line(own["name"], 30)), *cells, f"{sum(own['halo']):,}")
    Console().print(by_type)


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


COLUMNS = 80
NAME = 18  # largest width of a strategy's or a model's name
WORDS = ("strategy", "model", "metric")
LEAST_TELLING = ("best", "in all", "val", "metric", "model", "ranks")


@dataclass(frozen=True)
class Compared:
    """One run's row; seconds and bytes are numbers."""

    run: str
    strategy: str
    model: str
    ranks: int
    metric: str
    test: float | None
    val: float | None
    best_epoch: int
    epochs: int
    epoch_s: float
    wait_s: float
    bytes_per_epoch: int
    bytes_total: int
    target: float | None = None  # a validation score
    target_s: float | None = None  # seconds of training until `target` was reached; None: never

    @classmethod
    def of(cls, folder: Path, run: Outcome, target: float | None) -> "Compared":
        known = {field.name: getattr(run, field.name) for field in fields(cls) if hasattr(run, field.name)}
        if target is None:
            return cls(run=str(folder), **known)
        records = read_metrics(folder / "metrics.jsonl", run.epochs)
        reached = seconds_to(records, target, smaller=run.smaller_is_better)
        return cls(run=str(folder), **known, target=target, target_s=reached)


JSON_MARK, CSV_MARK = '[\n  {\n    "run": ', ",".join(field.name for field in fields(Compared))


def as_json_text(rows: Sequence[Compared]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=2, allow_nan=False) + "\n"


def as_csv_text(rows: Sequence[Compared]) -> str:
    """CSV with a header and one line per run; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Compared)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**asdict(row), "run": printable(row.run)} for row in rows)
    return text.getvalue()


def print_comparison(rows: Sequence[Compared], target: float | None) -> None:
    """Print one line per run, in at most 80 columns; common values stand above the table, run folders below."""
    told, differ = _in_common(rows)
    columns, left_out = _fitting(_columns(rows, differ, target))
    if told:
        print(told)
    print(" ".join(_aligned(head, head, column) for head, column in columns.items()).rstrip())
    print(" ".join("-" * _width(head, column) for head, column in columns.items()))
    for number in range(len(rows)):
        print(" ".join(_aligned(column[number], head, column) for head, column in columns.items()).rstrip())
    if left_out:
        print(f"left out to fit {COLUMNS} columns: {', '.join(left_out)}; --csv has all")
    for number, row in enumerate(rows, start=1):
        print(f"{number:>2}  {one_line(row.run, 1000)}")


Columns = dict[str, list[str]]  # cells of every run, by heading


def _columns(rows: Sequence[Compared], differ: Sequence[str], target: float | None) -> Columns:
    columns: Columns = {"#": [str(number) for number in range(1, len(rows) + 1)]}
    columns |= {name: [one_line(getattr(row, name), NAME) for row in rows] for name in ("strategy", *differ)}
    columns |= {"test": [score(row.test) for row in rows], "val": [score(row.val) for row in rows]}
    columns |= {"best": [str(row.best_epoch) for row in rows]}
    columns |= {"epoch": [milliseconds(row.epoch_s) for row in rows]}
    columns |= {"waiting": [milliseconds(row.wait_s) for row in rows]}
    columns |= {"bytes": [size(row.bytes_per_epoch) for row in rows], "in all": [size(row.bytes_total) for row in rows]}
    if target is not None:
        reached = ["never" if row.target_s is None else duration(row.target_s) for row in rows]
        columns |= {f"to {target:g}": reached}
    return columns


def _fitting(columns: Columns) -> tuple[Columns, list[str]]:
    """Split columns into those that fit and those that are left out; columns that say least are left out first."""
    out = []
    for name in LEAST_TELLING:
        if sum(_width(head, column) + 1 for head, column in columns.items()) - 1 <= COLUMNS:
            break
        if columns.pop(name, None) is not None:
            out.append(name)
    return columns, out


def _width(head: str, column: Sequence[str]) -> int:
    return max(map(len, (head, *column)))


def _aligned(cell: str, head: str, column: Sequence[str]) -> str:
    """Align words to the left, figures to the right."""
    return f"{cell:{'<' if head in WORDS else '>'}{_width(head, column)}}"


def _in_common(rows: Sequence[Compared]) -> tuple[str, list[str]]:
    """The line of values that all runs share, and the columns whose values differ."""
    values = {name: {getattr(row, name) for row in rows} for name in ("model", "ranks", "metric")}
    same = [name for name, found in values.items() if len(found) == 1]
    first = rows[0]
    words = {"model": one_line(first.model, 60), "ranks": f"on {count(first.ranks, 'rank')}", "metric": first.metric}
    return ", ".join(words[name] for name in same), [name for name in values if name not in same]
