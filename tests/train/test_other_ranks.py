"""A run of 4 ranks goes on with 3, 2 and 5: exact strategies as if nothing had happened, late ones with fresh rows."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import fullgraph as fg
from fullgraph.data import save_npz
from fullgraph.errors import InputError
from fullgraph.recutting import recut
from fullgraph.report import Phases
from tests.support import random_graph
from tests.typed.oracle import typed_graph

RANKS = 4
EPOCHS = 6
NODES = 90

try:
    from torch_geometric.nn import SAGEConv
except ImportError:
    SAGEConv = None


class Net(torch.nn.Module):
    """A user's model with a learned row for each node, dropout, and batch norm."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.rows = torch.nn.Embedding(NODES, 6)
        self.one, self.norm = SAGEConv(in_channels + 6, 8), torch.nn.BatchNorm1d(8)
        self.two = SAGEConv(8, out_channels)

    def forward(self, x, edge_index, node_id):
        x = torch.cat([x, self.rows(node_id)], 1)
        x = torch.nn.functional.dropout(self.norm(self.one(x, edge_index)).relu(), 0.3, self.training)
        return self.two(x, edge_index)


def plain():
    return random_graph(nodes=NODES, arcs=400, directed=True, weighted=True)


CASES = {
    "sage": (plain, {"model": fg.nn.GraphSAGE(layers=3, hidden=8, norm="batch")}),
    "scaled": (plain, {"model": fg.nn.GCN(layers=2, hidden=8), "features": "standard", "optimizer": "sgd"}),
    "mixgcn": (lambda: random_graph(nodes=NODES), {"model": fg.nn.GCN(layers=2, hidden=8), "strategy": "mixgcn"}),
    "one chunk": (
        lambda: random_graph(nodes=NODES),
        {"model": fg.nn.GCNII(layers=6, hidden=8), "strategy": fg.recipes.gnnpipe(chunks=1)},
    ),
    "links": (lambda: random_graph(nodes=NODES), {"task": "link"}),
    "learned rows": (typed_graph, {"model": "rgcn", "embedding_weight_decay": 0.01}),
    "own model": (lambda: random_graph(nodes=NODES), {"model": Net}),
}


def train(graph, out, **options):
    options = {"parts": RANKS, "eval_every": 2, "checkpoint_every": EPOCHS // 2, "dtype": "float64", **options}
    return fg.train(graph, out=out, report=False, epochs=EPOCHS, **options)


def stopped(run, folder):
    """A copy of a run's folder as it was after half of the epochs."""
    shutil.copytree(run.folder, folder)
    for file in ("checkpoints/epoch-00000006", "predictions"):
        shutil.rmtree(folder / file)
    for file in ("result.json", "model.safetensors"):
        (folder / file).unlink()
    return folder


def assert_same(one, other):
    losses = [[record.loss for record in run.metrics] for run in (one, other)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-10)
    weights = [load_file(run.folder / "model.safetensors") for run in (one, other)]
    torch.testing.assert_close(*weights, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs, by case."""
    runs = {}

    def of(case):
        make, options = CASES[case]
        if case not in runs:
            runs[case] = train(make(), tmp_path_factory.mktemp("whole") / "run", **options)
        return runs[case]

    return of


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [3, 2, 5])
@pytest.mark.parametrize("case", CASES)
def test_exact_runs_do_not_depend_on_the_number_of_ranks(case, ranks, whole, tmp_path):
    if case == "own model" and SAGEConv is None:
        pytest.skip("a user's model needs torch_geometric")
    again = fg.resume(stopped(whole(case), tmp_path / "run"), parts=ranks)
    assert again.result["ranks"] == ranks
    assert_same(whole(case), again)


def stop_in(folder, parts, call):
    """Resume in a process that ends by SIGKILL at the first call of a function of the recutting module."""
    code = (
        "import os, signal, fullgraph as fg, fullgraph.recutting as r\n"
        f"r.{call} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"fg.resume({str(folder)!r}, parts={parts})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL


def test_a_late_run_moves_there_and_back(tmp_path, capfd):
    """The cut that the run began with is used again; killed on the way, the run is as it was."""
    run = train(plain(), tmp_path / "late", strategy="pipegcn", model=fg.nn.GraphSAGE(layers=3, hidden=8))
    folder = stopped(run, tmp_path / "run")
    config = (folder / "config.json").read_bytes()
    for call in ("write_shards", "settle", "note"):  # before, while and after the new shards are written
        stop_in(folder, 3, call)
        assert (folder / "config.json").read_bytes() == config
    moved = fg.resume(folder, parts=3)
    assert (moved.result["ranks"], fg.Run.read(folder).shards) == (3, "shards-3")
    err = capfd.readouterr().err
    assert err.count("3 ranks continue the run of 4, on another cut of the graph; what ranks kept between steps") == 1
    again = fg.resume(folder, parts=4, epochs=EPOCHS + 2)
    assert (again.result["ranks"], fg.Run.read(folder).shards) == (4, "")
    assert sorted(path.name for path in folder.glob("shards*")) == ["shards", "shards-3"]
    assert fg.predict(again, out=tmp_path / "out").probabilities == pytest.approx(again.probabilities, abs=1e-12)


def test_a_checkpoint_of_another_cut_is_not_taken_for_this_one(tmp_path):
    """4 -> 2 -> 4 ranks without an epoch on 2, where the last cut differs from the first."""
    run = train(plain(), tmp_path / "late", strategy="pipegcn", model=fg.nn.GraphSAGE(layers=3, hidden=8))
    folder = stopped(run, tmp_path / "run")
    state = json.loads((folder / "checkpoints" / "epoch-00000003" / "state.json").read_text())
    assert (state["ranks"], state["shards"], state["began"]) == (4, fg.Run.read(folder).shards_checksum, 0)
    shutil.move(folder / "shards", tmp_path / "outside")  # a run whose shards another command made has none here
    first = fg.Run.read(folder)
    replace(first, shards=str(tmp_path / "outside"), partitioner=fg.partition.Random()).write(folder)
    for parts in (2, 4):
        config = recut(fg.Run.read(folder), folder, parts, Phases())
        config.write(folder)
    assert config.shards == "shards-4"
    assert config.shards_checksum != first.shards_checksum
    fg.resume(folder)
    state = json.loads((folder / "checkpoints" / "epoch-00000006" / "state.json").read_text())
    assert (state["ranks"], state["began"]) == (4, 3)


REFUSED = {
    "chunks": ({"model": "gcnii", "strategy": "gnnpipe"}, 2, "cannot be moved to 2; resume with 4 ranks"),
    "nodes": ({}, NODES + 1, f"{NODES + 1} parts for {NODES} nodes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_moved_is_refused_in_one_line(case, tmp_path):
    options, parts, told = REFUSED[case]
    folder = stopped(train(random_graph(nodes=NODES), tmp_path / "run", **options), tmp_path / "half")
    files = lambda: {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}  # noqa: E731
    before = files()
    with pytest.raises(InputError, match=told):
        fg.resume(folder, parts=parts)
    assert files() == before


def test_a_users_folder_with_the_name_of_a_cut_is_refused(tmp_path):
    folder = stopped(train(plain(), tmp_path / "run"), tmp_path / "half")
    (folder / "shards-2").mkdir()
    (folder / "shards-2" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="shards-2 holds something other than shards"):
        fg.resume(folder, parts=2)
    assert (folder / "shards-2" / "mine.txt").read_text() == "mine"


@pytest.mark.cold
def test_torchrun_starts_another_number_of_ranks(tmp_path):
    """Without --parts, the launcher's number of ranks counts; another one is refused."""
    save_npz(plain(), tmp_path / "g.npz")
    stopped(train(str(tmp_path / "g.npz"), tmp_path / "whole"), tmp_path / "run")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "fullgraph", "train", "--resume", "run"], cwd=tmp_path, capture_output=True, text=True,
        timeout=110, check=False, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same(fg.FinishedRun(tmp_path / "whole"), fg.FinishedRun(tmp_path / "run"))
