"""Finished runs side by side: a table of 80 columns for a person, CSV or JSON for a machine."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fullgraph.display import count, duration, milliseconds, score, size
from fullgraph.errors import one_line
from fullgraph.report.outcome import Outcome
from fullgraph.report.record import read_metrics, seconds_to

COLUMNS = 80


@dataclass(frozen=True)
class Compared:
    """A run's row; seconds and bytes as numbers."""

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
    target_s: float | None = None  # seconds of training until it was reached; None: never

    @classmethod
    def of(cls, folder: Path, run: Outcome, target: float | None) -> "Compared":
        known = {field.name: getattr(run, field.name) for field in fields(cls) if hasattr(run, field.name)}
        if target is None:
            return cls(run=str(folder), **known)
        records = read_metrics(folder / "metrics.jsonl", run.epochs)
        reached = seconds_to(records, target, smaller=run.smaller_is_better)
        return cls(run=str(folder), **known, target=target, target_s=reached)


def as_json_text(rows: Sequence[Compared]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=2, allow_nan=False) + "\n"


def as_csv_text(rows: Sequence[Compared]) -> str:
    """A head, then a line a run; what there is none of is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Compared)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def print_comparison(rows: Sequence[Compared], target: float | None) -> None:
    """A line a run. What all runs have in common is said above, and the folders, which are long, below."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    same, differ = _in_common(rows)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    heads = ["", "strategy", *differ, "test", "val", "best", "epoch", "waiting", "bytes", "in all"]
    for head in [*heads, *([f"to {target:g}"] if target is not None else [])]:
        left = head in ("strategy", "model", "metric")
        table.add_column(head, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for number, row in enumerate(rows, start=1):
        cells: list[object] = [number, row.strategy, *(getattr(row, name) for name in differ)]
        cells += [score(row.test), score(row.val), row.best_epoch, milliseconds(row.epoch_s)]
        cells += [milliseconds(row.wait_s), size(row.bytes_per_epoch), size(row.bytes_total)]
        if target is not None:
            cells.append("never" if row.target_s is None else duration(row.target_s))
        table.add_row(*(Text(one_line(cell)) for cell in cells))  # as text: names may look like markup
    console = Console()
    console = console if console.is_terminal and console.width < COLUMNS else Console(width=COLUMNS)
    if same:
        console.print(Text(same))
    console.print(table)
    for number, row in enumerate(rows, start=1):
        print(f"{number:>2}  {one_line(row.run, 1000)}")


def _in_common(rows: Sequence[Compared]) -> tuple[str, list[str]]:
    """What to say once of all runs, and which columns tell them apart."""
    values = {name: {getattr(row, name) for row in rows} for name in ("model", "ranks", "metric", "epochs")}
    told = {name: one_line(next(iter(found)), 60) for name, found in values.items() if len(found) == 1}
    words = {
        "model": told.get("model", ""),
        "ranks": f"on {count(rows[0].ranks, 'rank')}",
        "metric": told.get("metric", ""),
        "epochs": count(rows[0].epochs, "epoch"),
    }
    return ", ".join(words[name] for name in told), [name for name in values if name not in told]
