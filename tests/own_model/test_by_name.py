"""A module of the user's trains from the shell by the name of its file, on any number of ranks alike."""

import json
import subprocess
import sys

import numpy as np
import pytest

import fullgraph as fg
from fullgraph.axes import MODELS
from fullgraph.data import save_npz
from fullgraph.errors import InputError
from fullgraph.run import Run
from tests.support import random_graph

pytest.importorskip("torch_geometric")

NET = """
import torch
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv, SAGEConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, num_classes, hidden=12, dropout: float = 0.4, act=None):
        super().__init__()
        self.one, self.two = SAGEConv(in_channels, hidden), GATv2Conv(hidden, num_classes, heads=2, concat=False)
        self.norm, self.dropout = torch.nn.BatchNorm1d(hidden), dropout

    def forward(self, x, edge_index):
        x = F.dropout(self.norm(self.one(x, edge_index)).relu(), self.dropout, self.training)
        return self.two(x, edge_index)
"""


MIXING = """
import torch
from torch_geometric.nn import SAGEConv


class Mean(torch.nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.one, self.two = SAGEConv(in_channels, 16), SAGEConv(16, num_classes)
        self.register_buffer("mean", torch.zeros(16))
        self.calls = 0

    def centred(self, h):
        return h

    def forward(self, x, edge_index):
        self.calls += self.training
        return self.two(self.centred(self.one(x, edge_index).relu()), edge_index)


class InEvaluationOnly(Mean):
    def centred(self, h):
        return h if self.training else h - h.mean(0)


class RunningMean(Mean):
    def centred(self, h):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class AfterWarmUp(Mean):
    def centred(self, h):
        return h - h.mean(0) if self.calls > 4 else h
"""

LAZY = """
import torch
from torch_geometric.nn import SAGEConv


class Lazy(torch.nn.Module):
    def __init__(self, hidden=8, out_channels=2):
        super().__init__()
        self.one, self.two = SAGEConv(-1, hidden), SAGEConv((-1, -1), out_channels)

    def forward(self, x, edge_index):
        return self.two(self.one(x, edge_index).relu(), edge_index)
"""


def test_lazy_layers_work(tmp_path, monkeypatch):
    """As in PyG: the widths come from the graph; 1 and 3 ranks train alike, resume and predict."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lazy.py").write_text(LAZY)
    graph, options = random_graph(), {"epochs": 4, "dtype": "float64", "eval_every": 2, "checkpoint_every": 2}
    one, three = (fg.train(graph, model="lazy.py:Lazy", parts=parts, out=f"r{parts}", **options) for parts in (1, 3))
    np.testing.assert_allclose([r.loss for r in one.metrics], [r.loss for r in three.metrics], rtol=1e-10)
    again = fg.resume("r3", epochs=6)
    assert again.result["epochs"] == 6
    assert again.model.one.lin_l.weight.shape == (8, graph.num_features)
    np.testing.assert_array_equal(fg.predict("r3").classes, again.predictions)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    save_npz(random_graph(), tmp_path / "g.npz")
    return tmp_path


def command(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=110
    )
    return done.returncode, done.stderr.strip()


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_from_the_shell_on_one_rank_and_two(folder):
    common = ("train", "g.npz", "--model", "net.py:Net", "--epochs", 4, "--dtype", "float64", "-m", "hidden=8")
    for parts in (1, 2):
        assert command(folder, *common, "--parts", parts, "--out", f"run{parts}") == (0, "")
    np.testing.assert_allclose(losses(folder / "run1"), losses(folder / "run2"), rtol=1e-9)
    model = json.loads((folder / "run1" / "config.json").read_text())["model"]
    assert model == {"name": f"{folder}/net.py:Net", "hidden": 8, "dropout": 0.4, "act": None}
    assert command(folder, "predict", "run2", "--out", "again") == (0, "")
    first, again = (np.load(folder / where / "probabilities.npy") for where in ("run2/predictions", "again"))
    np.testing.assert_array_equal(first, again)


def test_resumed_with_a_stale_wire_it_is_the_same_run(folder):
    common = ("--model", "net.py:Net", "--strategy", "pipegcn", "--parts", 2, "--checkpoint-every", 1)
    assert command(folder, "train", "g.npz", *common, "--epochs", 5, "--out", "whole") == (0, "")
    assert command(folder, "train", "g.npz", *common, "--epochs", 3, "--out", "cut") == (0, "")
    assert command(folder, "train", "--resume", "cut", "--epochs", 5) == (0, "")
    assert losses(folder / "cut") == losses(folder / "whole")


def test_wrong_options_and_strategies_are_one_line(folder):
    code, told = command(folder, "train", "g.npz", "--model", "net.py:Net", "-m", "hiden=3")
    assert (code, told) == (
        2, "fullgraph: error: model 'net.py:Net' has no option hiden (did you mean hidden?); "
        "known: hidden=12, dropout=0.4, act=",
    )  # fmt: skip
    code, told = command(folder, "train", "g.npz", "--model", "net.py:Net", "--strategy", "mixgcn", "--parts", 2)
    assert code == 2
    assert "for yours use one of vanilla" in told
    assert "\n" not in told


def test_models_of_pyg_by_name(folder):
    from torch_geometric.nn import GCN

    spec = MODELS.make("torch_geometric.nn:GCN", hidden_channels="8", num_layers="2")
    assert (spec.hidden_channels, spec.num_layers, spec.graph_layers) == (8, 2, 2)
    assert isinstance(spec.build(5, 3), GCN)
    again = MODELS.read(MODELS.write(spec), "model")
    assert again == spec
    Run(model=spec).write(folder)
    assert Run.read(folder).model == spec


def test_a_class_in_python(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    from net import Net  # type: ignore[import-not-found]

    run = fg.train("g.npz", model=Net, parts=2, epochs=2, out="run")
    assert run.result["model"] == "net.py:Net"


def test_a_module_that_cannot_be_made_says_so():
    spec = MODELS.make("torch_geometric.nn:GCN", hidden_channels=8, num_layers=2)
    object.__setattr__(spec, "num_layers", "two")
    with pytest.raises(InputError, match="cannot be made"):
        spec.build(5, 3)


def test_what_a_finished_run_knows(folder, monkeypatch):
    monkeypatch.chdir(folder)
    run = fg.train("g.npz", model=str(folder / "net.py:Net"), epochs=3, out="run")
    assert [record.epoch for record in run.metrics] == [1, 2, 3]
    assert type(run.model).__name__ == "Net"
    graph = fg.load("g.npz")
    data = graph.to_pyg()
    said = run.model(data.x.float(), data.edge_index).softmax(1).detach().numpy()
    np.testing.assert_allclose(said, run.probabilities, rtol=1e-4, atol=1e-5)
    again = fg.resume(run.folder, epochs=5)
    assert len(again.metrics) == 5


@pytest.mark.parametrize("kind", ["InEvaluationOnly", "RunningMean", "AfterWarmUp"])
def test_from_the_shell_one_rank_gives_what_three_give(tmp_path, kind):
    """With the command's defaults: the ranks are processes in which the model calls our kernels first."""
    (tmp_path / "nets.py").write_text(MIXING)
    source = "sbm:nodes=300,edges=1500,features=16,classes=4,seed=1"
    for parts in (1, 3):
        line = ("train", source, "--parts", parts, "--model", f"nets.py:{kind}", "--epochs", 8, "--out", f"run-{parts}")
        assert command(tmp_path, *line) == (0, "")
    one, three = (json.loads((tmp_path / f"run-{parts}" / "result.json").read_text()) for parts in (1, 3))
    assert one["final_loss"] == pytest.approx(three["final_loss"], rel=1e-4)
    assert one["test"] == pytest.approx(three["test"], abs=0.02)
