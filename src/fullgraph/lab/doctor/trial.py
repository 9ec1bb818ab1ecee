"""The real thing, small: two ranks start, meet, train two epochs and write a run."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fullgraph.errors import one_line
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
