"""A class of a notebook, of a script or of a function trains like a class of a file; it is sent to the ranks."""

import json
import subprocess
import sys
import types
from functools import partial

import numpy as np
import pytest

import fullgraph as fg
from fullgraph import reference
from fullgraph.data import save_npz
from fullgraph.run import Run
from tests.support import random_graph

pytest.importorskip("torch_geometric")
pytest.importorskip("cloudpickle")

NET = """
import torch
from torch_geometric.nn import SAGEConv

WIDTH = 7

def bent(x):
    return x.relu() + 0.1 * x

class Base(torch.nn.Module):
    def forward(self, x, edge_index):
        return self.two(bent(self.one(x, edge_index)), edge_index)

class Net(Base):
    def __init__(self, in_channels, out_channels, hidden=WIDTH):
        super().__init__()
        self.one, self.two = SAGEConv(in_channels, hidden), SAGEConv(hidden, out_channels)
"""

SCRIPT = (
    NET
    + """
import fullgraph as fg

print("begins")  # a rank that ran this file would say so, and train in turn
run = fg.train("g.npz", model=Net, parts=2, epochs=3, checkpoint_every=1, out="script")
print(*(record.loss for record in run.metrics))
print(run.predict().classes.sum(), type(run.model) is Net)
"""
)

RESUME = NET + "import fullgraph as fg\nfg.resume('script', model=Net, epochs=5)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    save_npz(random_graph(), folder / "g.npz")
    for name, text in (("script.py", SCRIPT), ("resume.py", RESUME), ("net.py", NET)):
        (folder / name).write_text(text)
    return folder


def python(folder, *words):
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=110)
    return done.returncode, done.stdout.splitlines(), done.stderr.strip()


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def script(folder):
    """A script without `if __name__ == "__main__"`: no rank runs it."""
    return python(folder, "script.py")


def test_a_script_trains_its_own_class(folder, script):
    code, said, told = script
    assert (code, told) == (0, "")
    assert said.count("begins") == 1
    assert said[-1].endswith("True")
    assert json.loads((folder / "script" / "config.json").read_text())["model"] == {"name": "__main__:Net", "hidden": 7}
    by_file = fg.train(folder / "g.npz", model=f"{folder}/net.py:Net", parts=2, epochs=3, out=folder / "file")
    assert [record.loss for record in by_file.metrics] == losses(folder / "script")


def test_nothing_of_the_class_is_on_the_disk(folder, script):
    for path in (folder / "script").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"cloudpickle" not in data
            assert b"bent" not in data


def test_resumed_it_has_to_be_passed_again(folder, script):
    wanted = (
        "fullgraph: error: Net was a class of a notebook or script, in no file that could be read again; pass it once"
    )
    for words in (("train", "--resume", "script"), ("predict", "script", "--out", "p")):
        code, _, told = python(folder, "-m", "fullgraph", *words)
        assert (code, told.startswith(wanted), "fg.resume(folder, model=Net)" in told) == (2, True, True)
        assert "\n" not in told
    assert python(folder, "resume.py")[0] == 0
    whole = fg.train(folder / "g.npz", model=f"{folder}/net.py:Net", parts=2, epochs=5, out=folder / "whole")
    assert [record.loss for record in whole.metrics] == losses(folder / "script")


def test_classes_of_a_notebook_and_of_a_function(folder, tmp_path):
    notebook = types.ModuleType("a_notebook")
    sys.modules["a_notebook"] = notebook
    try:
        exec(NET, notebook.__dict__)
        run = fg.train(folder / "g.npz", model=partial(notebook.Net, hidden=5), parts=2, epochs=2, out=tmp_path / "a")
    finally:
        del sys.modules["a_notebook"]
    assert Run.read(run.folder).model.hidden == 5

    def made():
        scale = 2.0

        class Scaled(notebook.Net):
            def forward(self, x, edge_index):
                return scale * super().forward(x, edge_index)

        return Scaled

    run = fg.train(folder / "g.npz", model=made(), epochs=2, out=tmp_path / "b")
    assert type(run.model).__name__ == "Scaled"
    reference._handed.clear()  # as in another process
    with pytest.raises(fg.InputError, match=r"Scaled was a class.*fg\.predict\(folder, model=Scaled\)"):
        fg.predict(run)
    with pytest.raises(fg.InputError, match=r"Scaled was a class"):
        fg.predict(run, model=notebook.Net)
    again = fg.predict(run, model=made(), out=tmp_path / "again")
    np.testing.assert_array_equal(again.probabilities, run.probabilities)


def test_a_class_that_has_a_file_goes_by_its_name(folder, tmp_path, monkeypatch):
    import torch_geometric.nn

    assert reference.has_a_file(torch_geometric.nn.GCN)
    assert not reference.has_a_file(type("Net", (), {}))
    Run(model=f"{folder}/net.py:Net").write(tmp_path)
    with pytest.raises(
        fg.InputError, match=r"the model of the run in .* is net\.py:Net, found by its name; leave model="
    ):
        Run.read(tmp_path, type("Net", (), {}))


def test_what_cannot_be_sent_is_one_line(tmp_path, monkeypatch):
    import threading

    import torch

    lock = threading.Lock()

    class Locked(torch.nn.Module):
        def __init__(self, in_channels, out_channels):
            super().__init__()
            self.lock = lock

        def forward(self, x, edge_index):
            return x

    with pytest.raises(fg.InputError, match=r"Locked cannot be sent to ranks \(TypeError: cannot pickle"):
        fg.train("demo", model=Locked, out=tmp_path / "run")
    with pytest.raises(fg.InputError, match="has arguments without names; give them as NAME=VALUE"):
        fg.train("demo", model=partial(Locked, 3), out=tmp_path / "run")
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(fg.InputError, match=r"Locked is a class of a notebook.*pip install 'fullgraph\[notebook\]'"):
        fg.train("demo", model=Locked, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
