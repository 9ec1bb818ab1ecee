"""What to do with a run that is done: commands to copy."""

import shlex
from importlib.util import find_spec
from pathlib import Path

import typer

from fullgraph.storage import read_document


def next_commands(folder: Path, app: typer.Typer) -> dict[str, str]:
    """A command and what it is for; of a command that is not there, nothing is said."""
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
        else "a layer's row of every node",
        again: "the same run with another strategy; then `fullgraph compare` the two",
        f"fullgraph train --resume {run} --epochs {2 * result['epochs']}": "go on for as many epochs again",
    }
    if result["ranks"] == 1:
        del found[again]
    return {line: what for line, what in found.items() if line.split()[1] in known}
