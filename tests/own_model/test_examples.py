"""Each example runs in one process, and distributed by five changed lines; both reach the same accuracy."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric", reason="PyG is an extra")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CORA = EXAMPLES.parents[1] / "shared" / "data" / "cora.npz"
SMALL = "sbm:nodes=600,edges=6000,features=16,classes=4,seed=1"
CASES = {"gcn": (str(CORA) if CORA.exists() else SMALL, 40), "gatv2_jk": (SMALL, 30), "pna_edges": (SMALL, 60)}


def accuracy(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    values = re.findall(r"test accuracy ([0-9.]+)", done.stdout)
    assert len(set(values)) == 1, done.stdout
    return float(values[0])


@pytest.mark.timeout(600)  # each of them starts processes that import PyG
@pytest.mark.parametrize("name", CASES)
def test_both_reach_the_same_accuracy(name):
    graph, epochs = CASES[name]
    one = accuracy(str(EXAMPLES / f"{name}.py"), graph, str(epochs))
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    many = accuracy(*launch, str(EXAMPLES / f"{name}_distributed.py"), graph, str(epochs))
    assert one > 0.5
    assert many == pytest.approx(one, abs=0.06)


@pytest.mark.parametrize("name", CASES)
def test_five_lines_change(name):
    plain, distributed = (
        (EXAMPLES / f"{stem}.py").read_text().splitlines()[1:] for stem in (name, f"{name}_distributed")
    )
    changed = [line for line in difflib.ndiff(plain, distributed) if line.startswith("+ ")]
    assert 0 < len(changed) <= 5, changed


def test_the_document_shows_the_lines_that_change():
    document = (EXAMPLES.parent / "docs" / "own_models.md").read_text()
    plain, distributed = ((EXAMPLES / f"{stem}.py").read_text().splitlines()[1:] for stem in ("gcn", "gcn_distributed"))
    for line in difflib.ndiff(plain, distributed):
        if line.startswith(("+ ", "- ")):
            assert f"\n{line[0]}{line[2:]}\n" in document
