"""Tables for a person at a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullgraph.errors import one_line
from fullgraph.report.outcome import Outcome


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


def print_comparison(runs: Mapping[str, Outcome], reached: Mapping[str, float | None], target: float | None) -> None:
    """Runs side by side, a row each; `reached` is the seconds of training until a validation score of `target`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    columns = [
        "run",
        "strategy",
        "model",
        "ranks",
        "test",
        "val",
        "best epoch",
        "epoch",
        "exposed wait",
        "bytes an epoch",
        "bytes in all",
    ]
    for column in [*columns, *([f"to val {target:g}"] if target is not None else [])]:
        table.add_column(column, justify="left" if column in ("run", "strategy", "model") else "right")
    for name, run in runs.items():
        cells: list[object] = [name, run.strategy, run.model, run.ranks, _score(run.test), _score(run.val)]
        cells += [run.best_epoch, _milliseconds(run.epoch_s), _milliseconds(run.wait_s)]
        cells += [f"{run.bytes_per_epoch:,}", f"{run.bytes_total:,}"]
        if target is not None:
            seconds = reached[name]
            cells.append("never" if seconds is None else f"{seconds:.2f} s")
        table.add_row(*(Text(one_line(cell)) for cell in cells))  # as text: names may look like markup
    Console().print(table)


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def print_result(run: Outcome, folder: Path) -> None:
    """A finished run in two lines."""
    print(f"{run.strategy} on {run.ranks} ranks: test {run.metric} {_score(run.test)}, "
          f"val {_score(run.val)} at epoch {run.best_epoch}; {_milliseconds(run.epoch_s)} an epoch, "
          f"{_milliseconds(run.wait_s)} waiting, {run.bytes_per_epoch:,} bytes")  # fmt: skip
    print(f"run folder: {one_line(folder)}")
