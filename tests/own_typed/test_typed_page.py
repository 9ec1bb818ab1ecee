"""The page's example of a user's model runs as printed, and runs and loops agree with plain PyG."""

import json
import re
import shlex
import subprocess
import sys

import pytest

pytest.importorskip("torch_geometric")

from tests.own_typed.test_users_typed import PAGE


def run(*command, cwd):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_model_of_the_page_trains(tmp_path):
    page = PAGE.read_text()
    (program, *_), (model,) = (
        re.findall(r"```python\n(.*?)```", page, re.DOTALL),
        re.findall(r"```py\n(.*?)```", page, re.DOTALL),
    )
    (command,) = re.findall(r"```sh\nfullgraph (.*?)\n```", page)
    run("-c", program.replace("epochs=20", "epochs=1"), cwd=tmp_path)
    (tmp_path / "my_hetero.py").write_text(model)
    run("-m", "fullgraph", *shlex.split(command), "--out", "run", cwd=tmp_path)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["model"] == "my_hetero.py:Net"
    assert result["epochs"] == 10
