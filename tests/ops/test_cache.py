"""Several processes that compile the same loops at once share one cache folder."""

import os
import subprocess
import sys
from pathlib import Path

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
