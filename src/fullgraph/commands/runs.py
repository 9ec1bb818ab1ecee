"""Commands on runs: predict with one run, compare several; and commands that a user may run after a finished run."""

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fullgraph.axes import TABLE_FORMATS
from fullgraph.commands.shared import GRAPHS, JsonOption, offer
from fullgraph.display import shown
from fullgraph.errors import InputError
from fullgraph.report import Phases, read_outcome
from fullgraph.storage import read_document
from fullgraph.train.config import FILE, device_in, libraries_of
from fullgraph.train.fork_server import ForkServer


def predict(
    run: Annotated[Path, typer.Argument(help="a finished run's folder")],
    graph: Annotated[
        str | None,
        typer.Option(help="a different graph from the run's; it needs no labels", autocompletion=offer(GRAPHS)),
    ] = None,
    parts: Annotated[int, typer.Option(help="ranks for --graph; 0: as many as the run had")] = 0,
    embeddings: Annotated[
        str | None, typer.Option(help="write this layer's output too: its number, from 1, or its name in the model")
    ] = None,
    format: Annotated[str, typer.Option(help=", ".join(TABLE_FORMATS), autocompletion=offer(TABLE_FORMATS))] = "npy",
    out: Annotated[
        Path | None, typer.Option(help="folder for the files", show_default="the run's predictions/")
    ] = None,
) -> None:
    """Write every node's class and probabilities, in the graph's node order, with the best model of a run.

    Example:  fullgraph predict runs/mine --graph new.npz --out predictions/ --embeddings 2 --format parquet
    """
    with shown() as display, ForkServer(device_in(run / FILE), more=libraries_of(run / FILE)) as ahead:
        from fullgraph.predicting import predict as written

        phases = Phases(display=display)
        done = written(
            run, out, graph=graph, parts=parts, embeddings=embeddings, format=format, ahead=ahead, phases=phases
        )
    print(f"wrote {', '.join(map(str, done.files))}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of finished runs")],
    target: Annotated[
        float | None, typer.Option(help="a validation score: show the seconds until it was reached")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV for programs")] = False,
    as_json: JsonOption = False,
    out: Annotated[Path | None, typer.Option(help="write the table to FILE.csv or FILE.json")] = None,
) -> None:
    """Compare runs in a table: scores, epoch time, wait, bytes, time to a given score; and their differing options.

    Example:  fullgraph compare runs/vanilla runs/pipegcn --target 0.9
    """
    from fullgraph.report.settings import settings_of
    from fullgraph.report.tables import CSV_MARK, JSON_MARK, Compared, as_csv_text, as_json_text, print_comparison
    from fullgraph.storage import write_whole

    if as_csv and as_json:
        raise InputError("--csv and --json: leave out one of them")
    if out is not None and out.suffix not in (".csv", ".json"):
        raise InputError(f"--out {out}: name a file that ends in .csv or .json")
    rows = [Compared.of(folder, read_outcome(folder), target) for folder in runs]
    if out is not None:
        text, mark = (as_csv_text(rows), CSV_MARK) if out.suffix == ".csv" else (as_json_text(rows), JSON_MARK)
        write_whole(out, text, mark)
        print(f"wrote {out}")
    elif as_csv or as_json:
        print(as_csv_text(rows) if as_csv else as_json_text(rows), end="")
    else:
        settings = [
            settings_of(read_document(folder / FILE, fix="name the folder of a finished run")) for folder in runs
        ]
        print_comparison(rows, target, settings)


def next_commands(folder: Path, app: typer.Typer) -> dict[str, str]:
    """Return pairs (command, purpose); a command that this installation lacks is left out."""
    run = shlex.quote(str(folder))
    result = read_document(folder / "result.json", fix="name the folder of a finished run")
    other = "pipegcn" if result["strategy"] == "vanilla" else "vanilla"
    known = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    csv = find_spec("pyarrow") is not None
    wanted = "--format csv" if csv else "--embeddings 1"
    again = f"fullgraph train --config {run} --strategy {other}"
    found = {
        f"fullgraph report {run}": "a page with curves, where the time went, and advice",
        f"fullgraph predict {run} {wanted}": "every node's prediction as a table"
        if csv
        else "one layer's row of every node",
        again: "the same run with another strategy; then `fullgraph compare` the two",
        f"fullgraph train --resume {run} --epochs {2 * result['epochs']}": "train for as many epochs again",
    }
    if result["ranks"] == 1:
        del found[again]
    return {line: what for line, what in found.items() if line.split()[1] in known}
