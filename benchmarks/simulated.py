"""`fullgraph train ARGUMENTS --out FOLDER` with threads for ranks: the same files and scores, in this process.

For campaigns of many short trainings: nothing is started for each of them, and no rank waits for a busy machine's
scheduler. On a GPU all ranks use its default stream, so that what one of them sends is ready where another reads it.
"""

import gc
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from typer.main import get_command

from fullgraph.cli import app
from fullgraph.options import options_of, run_of
from fullgraph.preparing import is_cut, prepare
from fullgraph.report import Phases
from fullgraph.run import Run
from fullgraph.testing import run_threads
from fullgraph.train.folder import RunFolder
from fullgraph.train.rank_io import Stop
from fullgraph.transport import Transport
from fullgraph.worker import work

LONGEST_S = 3600.0  # of a training: ranks that wait for one another for longer never end


def train(arguments: Sequence[str], folder: Path) -> str:
    """Train, and return what the command would have written to standard error."""
    config = run_from([*arguments, "--out", str(folder)])
    beside = StringIO()
    with redirect_stderr(beside), RunFolder.new(folder, shards=not is_cut(config.graph)) as run:
        ready = prepare(config, config.graph, run, Phases())
        run_threads(ready.parts, be_rank, folder, timeout=LONGEST_S)
    if ready.train.device == "cuda":  # several processes share the GPU
        gc.collect()
        torch.cuda.empty_cache()
    return beside.getvalue()


def run_from(arguments: Sequence[str]) -> Run:
    """The run that `fullgraph train ARGUMENTS` would start, read by the command line itself."""
    commands: Any = get_command(app)
    with commands.commands["train"].make_context("train", list(arguments)) as context:
        return run_of(options_of(context))


def be_rank(transport: Transport, folder: Path) -> None:
    """One rank's whole job."""
    work(folder, "train", "", transport, Stop(), Phases())
