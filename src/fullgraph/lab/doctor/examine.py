"""All checks, ordered so that an earlier one explains a later one; the last check trains briefly on two ranks."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fullgraph.display import SILENT, Display
from fullgraph.errors import one_line
from fullgraph.lab.doctor import machine, packages
from fullgraph.lab.doctor.finding import BAD, OK, Finding
from fullgraph.lab.doctor.machine import surroundings
from fullgraph.storage import scratch

LIMIT_S = 180
COMMAND = (
    "train",
    "sbm:nodes=200,edges=800,features=8",
    "--parts",
    "2",
    "--epochs",
    "2",
    "--hidden",
    "8",
    "--out",
    "run",
)


def trial() -> Iterator[Finding]:
    """A small real run: two ranks start, meet, train two epochs and write the run's files."""
    start = time.perf_counter()
    with scratch(Path(tempfile.gettempdir())) as folder:
        line = [sys.executable, "-m", "fullgraph", *COMMAND]
        try:
            done = subprocess.run(line, cwd=folder, env=surroundings(), capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            fix = "see docs/reliability.md on --timeout; is a firewall between 127.0.0.1 and itself?"
            yield Finding("trial", BAD, f"two ranks did not finish within {LIMIT_S} s", fix)
            return
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        yield Finding("trial", BAD, f"two ranks could not train: {one_line(last[0], 200)}", "do what the line says")
        return
    yield Finding("trial", OK, f"two ranks trained in {time.perf_counter() - start:.1f} s, starting included")


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": packages.python,
    "packages": packages.needed,
    "torch": packages.torch,
    "backends": packages.backends,
    "GPUs": packages.gpus,
    "Triton": packages.triton,
    "numba": packages.numba,
    "METIS": packages.metis,
    "cores": machine.cores,
    "memory": machine.memory,
    "disk": machine.disk,
    "open files": machine.files,
    "processes": machine.processes,
    "shared memory": machine.shared_memory,
    "interfaces": machine.interfaces,
    "extras": packages.extras,
    "trial": trial,
}


def examine(leave_out: tuple[str, ...] = (), display: Display = SILENT) -> list[Finding]:
    """The findings of every check; an unexpected error of a check is a finding too."""
    found: list[Finding] = []
    checks = {name: check for name, check in CHECKS.items() if name not in leave_out}
    with display.phase("checking this machine"):
        for name, check in checks.items():
            with display.phase("training on two ranks" if name == "trial" else f"checking {name}"):
                found += _found(name, check)
    return found


def _found(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        return [Finding(name, BAD, f"the check failed: {one_line(error, 160)}", "see the message")]
