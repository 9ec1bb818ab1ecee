"""What the documents tell a reader to type works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def run(*command, cwd):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_example_runs(tmp_path):
    (example,) = python_blocks("README.md")
    (tmp_path / "example.py").write_text(example)
    out = run("example.py", cwd=tmp_path)
    accuracy, _, _, folder = out.splitlines()[-4:]
    assert float(accuracy) > 0.9
    assert (tmp_path / folder / "result.json").exists()


def test_the_loop_of_ones_own_runs(tmp_path):
    (loop,) = [block for block in python_blocks("docs/running.md") if "GradSync" in block]
    (tmp_path / "loop.py").write_text(loop)
    run("-m", "fullgraph", "partition", "demo", "--parts", "2", "--out", "parts", cwd=tmp_path)
    out = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py", cwd=tmp_path)
    assert 0 < float(out) < 1000  # of rank 0; about 1250 before the first step
