"""Several processes that compile the same loops at once share one cache folder."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from fullgraph.proc import Progress

CODE = """
import sys, torch
from fullgraph.ops import Adjacency, Structure, spmm
adj = Adjacency(Structure(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]), 3))
for name in sys.argv[1:]:
    x = torch.rand(3, 2, dtype=getattr(torch, name))
    torch.testing.assert_close(spmm(adj, x), torch.stack([x[0] + x[1], x[2]]))
"""


def test_processes_that_compile_at_once(tmp_path: Path) -> None:
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "FULLGRAPH_KERNELS": "numba"}

    def start(*types: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", CODE, *types]
        return subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)

    # Opposite orders: numba numbers its files by what it finds, so unlocked writers would take the same name.
    ranks = [start("float32", "float64"), start("float64", "float32")]
    said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    late = start("float32", "float64")
    assert (late.communicate(timeout=100)[1], late.returncode) == ("", 0)
    assert len(list(tmp_path.rglob("loops.spmm-*.nbc"))) == 2


def test_a_process_that_waits_for_the_cache_shows_progress(tmp_path: Path) -> None:
    """Regression: beside many busy processes a compilation takes minutes, and those that wait for it seemed stopped."""
    code = (
        "from fullgraph.ops.kernels_cpu import _one_process_at_a_time as alone\n"
        f"print(1, flush=True)\nwith alone({str(tmp_path)!r}): print(2)"
    )
    with (tmp_path / "fullgraph.lock").open("w") as lock:
        os.fchmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "1\n"
            time.sleep(1)  # for the end of its start, which is progress
            progress, made = Progress(), False
            progress.made(waiting.pid)
            deadline = time.monotonic() + 30
            while not made and time.monotonic() < deadline:
                time.sleep(0.5)
                made = progress.made(waiting.pid)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waiting.communicate(timeout=60)[0] == "2\n"
    assert made
