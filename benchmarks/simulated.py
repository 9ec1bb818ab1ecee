"""`fullgraph train ARGUMENTS --out FOLDER` with threads as ranks: the same files and scores, in this process.

For campaigns of many short trainings: no process is started for a training, and no rank waits for the scheduler of a
busy machine. On a GPU all ranks use its default stream, so that a sent tensor is ready when another rank reads it.
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

LONGEST_S = 3600.0  # limit of a training: ranks that wait for one another any longer will never end


def train(arguments: Sequence[str], folder: Path) -> str:
    """Train, and return the text that the command would have written to standard error."""
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
    """Return the run that `fullgraph train ARGUMENTS` would start, parsed by the command line itself."""
    commands: Any = get_command(app)
    with commands.commands["train"].make_context("train", list(arguments)) as context:
        return run_of(options_of(context))


def be_rank(transport: Transport, folder: Path) -> None:
    """Do the whole work of one rank."""
    work(folder, "train", "", transport, Stop(), Phases())
