"""Compare finished runs: a table of 80 columns for a person, CSV or JSON for a program."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fullgraph.errors import one_line, printable
from fullgraph.report.record import read_metrics, seconds_to
from fullgraph.report.tables import Outcome
from fullgraph.words import count, duration, milliseconds, score, size

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
