"""Mutated user files: one line with the file and its line, the user's frames below it, and none of fullgraph's.

A trial is one changed file: a model, loss, metric, partitioner, optimizer, callback, codec, schedule, decoder or
strategy from docs/extending, or a file of options. Trials share long-lived processes, with threads as ranks; some
trials run in separate processes, like a user's command.

    python -m faults user-files --trials 1000
    python -m faults.user_files NUMBER         shows one trial
"""

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from faults.inputs.batch import run_real
from faults.inputs.case import ERROR, NOTE, Case, Ended
from faults.inputs.here import run_here
from faults.trials import Campaign
from faults.user_files.edits import edited
from faults.user_files.files import KINDS
from fullgraph.own_code import PACKAGE

REAL = 40  # one of this many trials runs in separate processes
# Errors without a line number: a name that is not in the file, or an option that is not in the class.
NO_LINE = re.compile(
    r"has no \w+; it has|has no option|has unknown options|leave it out|is unknown|not text|is no \w+: it has no"
)


def trial(number: int, shared: Path, *, real: bool | None = None) -> str:
    """Change a file, run a command that names it, and judge how it ends."""
    random = Random(f"user files {number}")
    name, kind = list(KINDS.items())[number % len(KINDS)]
    change = edited(random, kind)
    ending = ".toml" if name == "options" else ".py"
    in_processes = number % REAL == REAL - 1 if real is None else real
    file = f"{name}_{number}{ending}"  # a process imports a file only once
    return tried(file, change.data, kind.command, shared, what=change.what, must_fail=change.wrong, real=in_processes)[
        0
    ]


def tried(
    name: str, data: bytes, command: Sequence[str], shared: Path, *, what: str, must_fail: bool, real: bool = False
) -> tuple[str, str]:
    """Run the command with a file of this name in place of FILE; return how it ended, and the last lines it wrote."""
    scratch = Path(tempfile.mkdtemp(dir=shared, prefix="user-files-"))
    here = scratch / "case"
    here.mkdir()
    (here / name).write_bytes(data)
    try:
        case = Case(what, [word.replace("FILE", name) for word in command])
        ended = run_real(case, here) if real else run_here(case, here, scratch)
        try:
            return _judged(ended, here / name, must_fail=must_fail), ended.err
        except AssertionError as error:
            raise AssertionError(f"{name}: {what}: {error}\n{ended.err[-2500:]}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _judged(ended: Ended, file: Path, *, must_fail: bool) -> str:
    err = re.sub(r"^.*Warning: .*\n(  .*\n)?", "", ended.err, flags=re.M)  # Python's own warnings about the file
    lines = [line for line in err.splitlines() if not line.startswith(NOTE)]
    assert "Traceback" not in ended.err, "a traceback"
    assert f'File "{PACKAGE}' not in err, "a frame of ours"
    assert not re.search(rf'File ".*{os.sep}torch{os.sep}', err), "a frame of torch"
    if ended.code == 0:
        assert not must_fail, "accepted"
        return "right"
    assert ended.code == 2, f"exit status {ended.code}"
    errors = [line for line in lines if line.startswith(ERROR)]
    assert len(errors) == 1, f"{len(errors)} lines of errors"
    below = lines[lines.index(errors[0]) + 1 :]
    assert all(line.startswith("  ") or not line.strip() for line in below), "more than frames below the line"
    frames = [line for line in below if line.lstrip().startswith("File ")]
    assert len(frames) <= 12, f"{len(frames)} frames"
    assert file.name in errors[0] or NO_LINE.search(errors[0]), "the file is not named"
    if not re.search(rf"{re.escape(file.name)}:\d+|at line \d+", errors[0]):
        assert NO_LINE.search(errors[0]), "no line is named"
        return "refused by name"
    return "refused, with the frames" if frames else "refused"


CAMPAIGN = Campaign(trial, 1000, "users' files with errors: one line with file and line, their frames, none of ours")
