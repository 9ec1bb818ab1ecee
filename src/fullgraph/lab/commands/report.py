"""`fullgraph report`."""

from pathlib import Path
from typing import Annotated

import typer

from fullgraph.errors import one_line


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, finished or not")],
    out: Annotated[
        Path | None,
        typer.Option(help="the page", show_default="RUN/report.html; of several: report.html"),
    ] = None,
) -> None:
    """Write a page that shows a run, or several beside one another: one file that opens without a network.

    Example:  fullgraph report runs/mine        or:  fullgraph report runs/vanilla runs/pipegcn --out both.html
    """
    from fullgraph.lab.html import PAGE, write_comparison, write_report

    page = write_report(runs[0], out) if len(runs) == 1 else write_comparison(runs, out or Path(PAGE))
    print(f"wrote {one_line(page)}")
