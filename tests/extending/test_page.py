"""docs/extending.md: every printed command and every printed call runs as printed."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fullgraph as fg
from tests.support import random_graph

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "extending.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
CALLS = re.findall(r"```python\n(import fullgraph as fg\n.*?)```", PAGE, re.DOTALL)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the files that the page shows, and the graphs that its commands name."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(DOCS / "extending", folder, dirs_exist_ok=True)
    graph = random_graph(nodes=300, arcs=1500, features=10)
    fg.save_npz(graph, folder / "mygraph.npz")
    np.savetxt(folder / "edges.txt", graph.edge_index.T, fmt="%d")
    np.savetxt(folder / "labels.txt", np.abs(graph.y), fmt="%d")
    return folder


def run(home, *words):
    done = subprocess.run([sys.executable, *words], cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_works(line, home):
    program, *words = shlex.split(line)
    assert program == "fullgraph"
    run(home, "-m", "fullgraph", *words)


@pytest.mark.parametrize("text", CALLS)
def test_the_call_works(text, home):
    (home / "call.py").write_text(text)
    run(home, "call.py")


def test_every_file_is_named_in_a_command():
    files = {path.name for path in (DOCS / "extending").glob("*.py")}
    assert {name for name in files if f"{name}:" not in " ".join(COMMANDS)} == {"to_mlflow.py", "to_wandb.py"}
