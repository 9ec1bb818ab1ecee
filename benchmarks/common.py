"""What the benchmarks share: run the command line as a user would, read result.json, print one table.

This process stays small (no torch, no graph): on Linux a child's ru_maxrss starts at its parent's size.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fullgraph.lab.bench import Cell

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # of tests/ some scripts borrow helpers


class Cost(NamedTuple):
    seconds: float
    peak_bytes: int  # the largest process of the command
    output: str  # standard output and error together


def run(arguments: Sequence[object], *, threads: int | None = None, environ: Mapping[str, str] | None = None) -> Cost:
    """Run a Python command to its end and report what it cost; its output is shown only when it fails."""
    command = [sys.executable, *map(str, arguments)]
    environ = {**os.environ, **(environ or {})}
    if threads is not None:
        environ |= {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nexited with {child.returncode}:\n{output[-4000:]}")
    return Cost(time.perf_counter() - start, usage.ru_maxrss * 1024, output)


def fullgraph(*arguments: object, threads: int | None = None) -> Cost:
    """`fullgraph ARGUMENTS`."""
    return run(["-m", "fullgraph", *arguments], threads=threads)


def train(graph: object, out: Path, *arguments: object, threads: int | None = None) -> dict[str, Any]:
    """`fullgraph train GRAPH ... --out OUT`, and the run's result.json."""
    fullgraph("train", graph, *arguments, "--out", out, threads=threads)
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def bench(
    *, graph: object, model: str, strategy: Sequence[str], ranks: int, rate: str, **how: Any
) -> dict[str, "Cell"]:
    """The cells of `fullgraph bench`, by strategy; one that fails ends the script. It imports torch."""
    from fullgraph.lab.bench import Matrix, Settings
    from fullgraph.lab.bench.campaign import carry_out

    matrix = Matrix(graph=(str(graph),), model=(model,), strategy=tuple(strategy), ranks=(ranks,), rate=(rate,))
    with tempfile.TemporaryDirectory() as folder:
        book = carry_out(matrix, Settings(**how), Path(folder))
    if book.failed:
        raise SystemExit("\n".join(f"{where}: {why}" for where, why in book.failed_lines().items()))
    return {cell.strategy: cell for cell in book.cells.values()}


def fresh_folder(name: str) -> Path:
    """runs/NAME/TIME, new for every call."""
    folder = ROOT / "runs" / name / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    return folder


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], *, markdown: bool = False) -> None:
    """One table; the first column is text, the others are figures. markdown: as documents have it."""
    if markdown:
        return show_markdown(title, list(columns), rows)
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    # A pipe has no width: let the table be as wide as it is.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def show_markdown(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """The title as a line of text, and a table."""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    print(f"\n{title}\n")
    for row in (columns, rule, *rows):
        print(f"| {' | '.join(map(str, row))} |")


def size(nbytes: float) -> str:
    """1234567 -> '1.18 MiB'."""
    power = next((power for power in range(3) if nbytes < 1000 * 1024**power), 3)
    return f"{nbytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
