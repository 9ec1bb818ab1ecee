"""`fg.train` in eight threads of one process, or from asyncio: every call trains, and all runs are equal."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from faults.trials import Campaign

THREADS, RUNS, LIMIT_S = 8, 40, 900.0
SCRIPT = """
import asyncio, ctypes, faulthandler, json, sys, zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import fullgraph as fg
from tests.support import random_graph

how, runs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
faulthandler.dump_traceback_later(float(sys.argv[4]), exit=True)  # a hang says where
graph = random_graph(nodes=80, arcs=400)

def one(number):
    run = fg.train(graph, model="gcn", parts=2, epochs=3, eval_every=1, threads=1, out=f"run-{number}")
    result = run.result
    return [result["epochs"], result["final_loss"], result["test"], zlib.crc32(run.probabilities.tobytes())]

async def all_at_once():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
    return await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(runs)))

if __name__ == "__main__":
    if how == "asyncio":
        found = asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(one, range(runs)))
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(adopts))  # PR_GET_CHILD_SUBREAPER
    Path("found.json").write_text(json.dumps([adopts.value, found]))
"""


def trial(number: int, shared: Path) -> str:
    return run(("threads", "asyncio")[number % 2], shared, RUNS)


def run(how: str, shared: Path, runs: int) -> str:
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        (here / "script.py").write_text(SCRIPT)
        line = [sys.executable, "script.py", how, str(runs), str(THREADS), str(LIMIT_S)]
        environ = {**os.environ, "TMPDIR": str(here)}
        done = subprocess.run(line, cwd=here, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        adopts, found = json.loads((here / "found.json").read_text())
        assert len(found) == runs
        assert found.count(found[0]) == runs, f"not all runs are equal: {found}"
        assert found[0][0] == 3, found[0]
        assert not adopts, "the process still adopts orphans"
    return f"{runs} trained from {how}"


CAMPAIGN = Campaign(trial, 5, "fg.train in 8 threads, or from asyncio: all trained, all equal", jobs=1)
