"""`--config` with a run's own config.json trains the same run again, changed by options of the shell."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fullgraph as fg
from fullgraph.codec import LowBit
from fullgraph.exchange import Bounded
from fullgraph.options import run_of
from fullgraph.run import Run
from tests.support import random_graph

NET = """
import torch
from torch_geometric.nn import SAGEConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels, hidden=12):
        super().__init__()
        self.one, self.two = SAGEConv(in_channels, hidden), SAGEConv(hidden, out_channels)

    def forward(self, x, edge_index):
        return self.two(torch.nn.functional.dropout(self.one(x, edge_index), 0.3, self.training), edge_index)
"""


def command(folder, *words):
    """Its exit code, and its notes: most rows are late here, which is noted."""
    done = subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=110
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("fullgraph: note: ")]
    return done.returncode, "\n".join(said).strip()


def config(folder):
    return {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if k not in ("id", "checksum")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch_geometric")
    folder = tmp_path_factory.mktemp("again")
    (folder / "net.py").write_text(NET)
    fg.save_npz(random_graph(), folder / "g.npz")
    strategy = ("--strategy", "free", "-o", "codec=lowbit", "-o", "bits=4", "-o", "schedule=bounded", "-o", "refresh=3")
    other = ("--partitioner", "random", "--features", "standard", "--seed", 3, "--epochs", 5, "--eval-every", 2)
    model = ("--model", "net.py:Net", "-m", "hidden=8", "--lr-schedule", "cosine", "--parts", 2)
    assert command(folder, "train", "g.npz", *model, *strategy, *other, "--out", "a") == (0, "")
    return folder


def test_the_same_run_again_to_the_bit(folder):
    assert command(folder, "train", "--config", "a/config.json", "--out", "b") == (0, "")
    assert config(folder / "b") == config(folder / "a")
    ids = [json.loads((folder / run / "config.json").read_text())["id"] for run in "ab"]
    assert ids[0] != ids[1]
    one, other = (load_file(folder / run / "model.safetensors") for run in "ab")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    logs = [(folder / run / "metrics.jsonl").read_text().splitlines() for run in "ab"]
    records = [[json.loads(line) for line in log] for log in logs]
    kept = ("epoch", "loss", "lr", "bytes", "grad_bytes", "train", "val", "test")
    assert [[r.get(k) for k in kept] for r in records[0]] == [[r.get(k) for k in kept] for r in records[1]]
    for name in ("classes", "probabilities"):
        np.testing.assert_array_equal(*(np.load(folder / run / "predictions" / f"{name}.npy") for run in "ab"))


def test_options_of_the_shell_are_laid_over_it(folder):
    words = ("--epochs", 2, "-o", "bits=2", "-m", "hidden=6", "--features", "row")
    assert command(folder, "train", "--config", "a", *words, "--out", "c") == (0, "")
    before, after = config(folder / "a"), config(folder / "c")
    assert (before.pop("shards_checksum"), before.pop("features")) != (after.pop("shards_checksum"), "standard")
    assert after.pop("features") == "row"
    assert (before["train"].pop("epochs"), after["train"].pop("epochs")) == (5, 2)
    assert (before["model"].pop("hidden"), after["model"].pop("hidden")) == (8, 6)
    assert (before["strategy"]["codec"].pop("bits"), after["strategy"]["codec"].pop("bits")) == (4, 2)
    assert after == before


def test_what_is_named_anew_has_its_own_defaults(folder):
    def laid(**given):
        return run_of({"config": folder / "a" / "config.json", **given})

    base = Run.read(folder / "a")
    assert laid().model == base.model
    assert laid(option=["refresh=7"]).strategy.schedule == Bounded(refresh=7)
    assert laid(option=["refresh=7"]).strategy.codec == LowBit(bits=4)
    assert laid(strategy="pipegcn", option=["lag=2"]).strategy == fg.recipes.pipegcn(lag=2)
    assert laid(model="gat", heads=2, hidden=16).model == fg.nn.GAT(heads=2, hidden=16)
    assert laid(lr=0.5, patience=3).train.patience == 3
    assert laid(partitioner="metis").partitioner.__class__.__name__ == "Metis"
    assert (laid(graph="demo", parts=3).graph, laid(graph="demo", parts=3).parts) == ("demo", 3)


@pytest.mark.parametrize(
    ("words", "told"),
    [(["-o", "nope=1"], "has no option nope; known: "), (["-o", "bits=99"], "bits=99"), (["--lr", "-1"], "lr=-1"),
     (["--model", "nothing"], "model 'nothing' is unknown"), (["nowhere.npz"], "nowhere.npz does not exist"),
     (["--heads", "2"], "--heads is an option of --model gat or rgat or hgt, not of net.py:Net"),
     (["--model", "sage", "--heads", "2"], "--heads is an option of --model gat or rgat or hgt, not of sage")],
)  # fmt: skip
def test_wrong_options_over_it_are_one_line(folder, words, told):
    code, said = command(folder, "train", "--config", "a/config.json", *words, "--out", "wrong")
    assert code == 2
    assert told in said
    assert "\n" not in said
    assert not (folder / "wrong").exists()


def test_a_config_that_is_none_is_one_line(folder, tmp_path):
    (tmp_path / "mine.json").write_text('{"epochs": 3}')
    for words, told in ((["--config", "mine.json"], "mine.json"), (["--config", "gone/config.json"], "gone/config"),
                        (["--resume", folder / "a", "--config", folder / "a"], "leave out config")):  # fmt: skip
        code, said = command(tmp_path, "train", *words)
        assert (code, told in said, "\n" in said) == (2, True, False), said
