"""One case of a trial: create, run, judge."""

import os
import shutil
from pathlib import Path
from random import Random

from faults.command import Command
from faults.inputs import foreign, graphs, options, runs, surroundings
from faults.inputs.case import Case, Ended, files_in, judge
from faults.inputs.here import run_here

KINDS = (graphs.case, runs.case, options.case) * 3 + (foreign.case,)
REAL = 200  # one of this many cases runs in separate processes, and another one in hostile surroundings


def run_case(trial: int, index: int, shared: Path, scratch: Path) -> tuple[str, str]:
    """Return (how it ended, the case and its events); it ended "broken" if the promise is broken."""
    random = Random(f"{trial}/{index}")
    number = trial * 100 + index
    here = scratch / "case"
    for name in ("case", "canon"):
        _clear(scratch / name)
    here.mkdir()
    told = "in the making"
    try:
        make = surroundings.case if number % REAL == 77 else KINDS[index % len(KINDS)]
        case = make(random, here, shared, lambda arguments, folder: run_here(Case("", arguments), folder, scratch))
        case.real = case.real or (number % REAL == 177 and not case.points_out)
        told = str(case)
        before = files_in(here)
        ended = run_real(case, here) if case.real else run_here(case, here, scratch)
        end = judge(case, ended, before)
        assert not list(scratch.glob("**/pwned*")), "code in a file was run"
        return end, f"{told}: {ended.err.strip()}"
    except AssertionError as error:
        return "broken", f"{told}: {error}"
    except Exception as error:
        import traceback

        return "broken", f"{told}: the trial itself: {error!r} {traceback.format_exc()[-1500:]}"


def run_real(case: Case, here: Path) -> Ended:
    """Run the command as a user would start it."""
    prefix = ["bash", "-c", case.shell] if case.shell else []
    beside = here.parent / "tmp"
    beside.mkdir(exist_ok=True)
    environ = {name: str(beside) for name in ("HOME", "FULLGRAPH_DATA", "TMPDIR")}
    with Command(*case.arguments, cwd=here, env={**environ, **case.environ}, prefix=prefix) as command:
        command.finish(3 * case.limit_s)
        err = command.err
        if case.environ.get("PYTHONIOENCODING") == "utf-16":  # two bytes per letter, and a byte order mark
            err = err.replace("\0", "").replace("\ufffd", "")
        return Ended(here, command.code, command.out, err)


def _clear(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                os.chmod(path, 0o755)
        shutil.rmtree(folder)
