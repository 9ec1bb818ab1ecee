"""What to do with a run that is done: commands to copy."""

import shlex
from pathlib import Path

import typer

from fullgraph.storage import read_document


def next_commands(folder: Path, app: typer.Typer) -> dict[str, str]:
    """A command and what it is for; of a command that is not there, nothing is said."""
    run = shlex.quote(str(folder))
    result = read_document(folder / "result.json", fix="name the folder of a finished run")
    other = "pipegcn" if result["strategy"] == "vanilla" else "vanilla"
    known = {(info.callback.__name__ if info.callback else "") for info in app.registered_commands}
    again = f"fullgraph train --config {run} --strategy {other}"
    found = {
        f"fullgraph report {run}": "a page with curves, where the time went, and advice",
        f"fullgraph predict {run} --format csv": "every node's prediction as a table",
        again: "the same run with another strategy; then `fullgraph compare` the two",
        f"fullgraph train --resume {run} --epochs {2 * result['epochs']}": "go on for as many epochs again",
    }
    if result["ranks"] == 1:
        del found[again]
    return {line: what for line, what in found.items() if line.split()[1] in known}
