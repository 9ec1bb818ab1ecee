"""A loss, an optimizer, a callback and a decoder, each in one file outside the package (those of docs/extending.md)."""

import inspect
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.axes import LOSSES, OPTIMIZERS
from fullgraph.cli import main
from fullgraph.errors import InputError
from fullgraph.reference import load
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.optimizer import load_state, state_tensors
from fullgraph.values import read_value, tree_of
from tests.support import CASES, assert_same, dense_trace, differing, random_graph, resumed_epochs, train_trace

FILES = Path(__file__).resolve().parents[2] / "docs" / "extending"
FOCAL, LION, GOOD, DISTANCE = (
    f"{FILES / file}.py:{name}"
    for file, name in {
        "focal": "Focal", "lion": "Lion", "good_enough": "GoodEnough", "distance": "Distance",
    }.items()
)  # fmt: skip
GCN = fg.nn.GCN(layers=2, hidden=12, dropout=0.3, input_dropout=True, norm="none")
CASE = CASES["directed"]


def fullgraph(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=300
    )


# --- a loss


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_loss_does_not_depend_on_the_ranks(ranks):
    """Its options include weights of classes; compared with the equation on one process."""
    loss = LOSSES.make(FOCAL, gamma="1.5", weights="1,2,0.5,3")
    graph, _ = CASE(1)
    rows, y = torch.from_numpy(graph.train_mask[:, 0].copy()), torch.from_numpy(np.array(graph.y))
    w = torch.tensor([1, 2, 0.5, 3], dtype=torch.float64)

    def objective(step, out):
        log_p = F.log_softmax(out[rows], 1)[torch.arange(int(rows.sum())), y[rows]]
        return (-w[y[rows]] * (1 - log_p.exp()) ** 1.5 * log_p).mean()

    want = dense_trace(graph, GCN, 4, objective=objective)
    assert_same(run_threads(ranks, partial(train_trace, options={"loss": loss}), CASE, GCN, 4), *want)


# --- an optimizer


class Counting(torch.optim.Optimizer):
    """Keeps state that torch's optimizers do not: numbers, None, wider tensors than the weights, numbers of a group."""

    def __init__(self, params, lr=0.1, scale: float = 1.0):
        super().__init__(params, {"lr": lr, "scale": scale, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for weight in group["params"]:
                kept = self.state[weight]
                if not kept:
                    kept |= {"count": 0, "total": 0.0, "on": True, "none": None}
                    kept["fine"] = torch.zeros_like(weight, dtype=torch.float64)
                    kept["ticks"] = torch.zeros(3, dtype=torch.int64)
                kept["count"] += 1
                kept["total"] += float(weight.grad.abs().sum())
                kept["ticks"][kept["count"] % 3] += 1
                kept["fine"] += weight.grad.double() / 3
                change = kept["fine"] * (group["lr"] * group["scale"] / (kept["count"] + group["k"] + kept["total"]))
                weight.sub_(change.to(weight.dtype) * (2 if kept["on"] else 1))


class Hoarding(Counting):
    def step(self, closure=None):
        super().step()
        self.state[self.param_groups[0]["params"][0]]["all"] = [1, 2]


@pytest.mark.parametrize("optimizer", [LION, "torch.optim:RMSprop", "torch.optim:NAdam", f"{__file__}:Counting"])
def test_a_run_resumed_is_the_same_run(optimizer):
    config = TrainConfig(epochs=4, checkpoint_every=1, lr=0.01, seed=3, optimizer=optimizer)
    for (losses, saved), *others in run_threads(2, resumed_epochs, CASE, GCN, config):
        assert losses[-1] < losses[0]
        for start, (again, kept) in enumerate(others):
            assert again == losses[start:]
            assert differing(kept[-1], saved[-1]) == []


def test_an_optimizer_gives_back_what_it_was_given():
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    made = [OPTIMIZERS.make(f"{__file__}:Counting", scale="0.5").build(weights, lr=0.1, weight_decay=0.0) for _ in "ab"]
    for _ in range(2):
        (weights[0].sum() ** 2 + weights[1].sum()).backward()
        made[0].step()
    load_state(made[1], state_tensors(made[0]))
    for one, other in ((o.state_dict() for o in made),):
        assert repr(one) == repr(other)
        assert other["state"][0]["fine"].dtype == torch.float64
        assert other["state"][0]["ticks"].dtype == torch.int64
        assert other["param_groups"][0]["k"] == 2


def test_optimizers_from_python():
    """A class, or functools.partial of one, stands for the value that describes it."""
    kinds = [torch.optim.RMSprop, partial(torch.optim.RMSprop, alpha=0.5), partial(torch.optim.Adam, betas=(0.8, 0.9))]
    for kind, options in zip(kinds, [{"alpha": 0.99}, {"alpha": 0.5}, {"betas": (0.8, 0.9)}], strict=True):
        config = read_value(TrainConfig, {"optimizer": kind}, "fg.train")
        found = config.optimizer.build([torch.nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=0.01)
        assert {name: found.param_groups[0][name] for name in options} == options
        assert (found.param_groups[0]["lr"], found.param_groups[0]["weight_decay"]) == (0.1, 0.01)
        again = read_value(TrainConfig, json.loads(json.dumps(tree_of(config))), "config.json")
        assert again == config


# --- a callback


class Listening:
    """Not a frozen dataclass."""

    def __call__(self, record):
        pass


def note(record):
    with Path("told.txt").open("a") as file:
        file.write(f"{record.epoch} {record.loss!r}\n")


def test_a_callback_may_end_a_run_before_its_first_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stop.py").write_text("def stop(record):\n    return record.epoch == 2\n")
    run = fg.train(fg.load("sbm:nodes=60,classes=2"), epochs=20, eval_every=10, callbacks=["stop.py:stop"], out="run")
    assert (run.result["epochs"], run.result["best_epoch"]) == (2, 2)
    assert run.result["val"] is not None


def test_a_callback_is_told_of_every_epoch_and_may_end_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.py").write_text("from pathlib import Path\n\n\n" + inspect.getsource(note))
    enough = load(GOOD)(val=0.0)
    graph = random_graph(nodes=200, arcs=900)
    run = fg.train(graph, epochs=20, eval_every=3, callbacks=["note.py:note", enough], parts=2, out="run")
    assert run.result["epochs"] == 3  # the first that was evaluated
    told = (tmp_path / "told.txt").read_text().splitlines()
    assert told == [f"{record.epoch} {record.loss!r}" for record in run.metrics]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["train"]["callbacks"] == [f"{tmp_path / 'note.py'}:note", {"name": GOOD, "val": 0.0}]
    assert (run.folder / "model.safetensors").exists()


# --- from the shell, on two ranks


def test_a_run_from_the_shell(tmp_path):
    fg.save_npz(random_graph(nodes=300, arcs=1500, features=10), tmp_path / "g.npz")
    for file in FILES.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    done = fullgraph(
        "train", "g.npz", "--parts", 2, "--epochs", 12, "--eval-every", 2, "--checkpoint-every", 1, "--hidden", 16,
        "--loss", "focal.py:Focal", "-t", "gamma=1.5", "--optimizer", "lion.py:Lion", "-t", "betas=0.9,0.95",
        "--lr", 0.001, "--callback", "good_enough.py:GoodEnough,val=0", "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = fg.Run.read(tmp_path / "run").train
    assert (config.loss.gamma, config.optimizer.betas, config.callbacks[0].val) == (1.5, (0.9, 0.95), 0)
    result = fg.FinishedRun(tmp_path / "run").result
    assert (result["epochs"], result["task"]) == (2, "classification")
    done = fullgraph("train", "--resume", "run", "--epochs", 14, cwd=tmp_path)  # its last epoch is told of again
    assert done.returncode == 0, done.stderr
    assert fg.FinishedRun(tmp_path / "run").result["epochs"] == 2


def test_links_from_the_shell(tmp_path):
    """A user's decoder; every node's row and every pair's score; the same on one rank."""
    graph = random_graph(nodes=200, arcs=800, features=10)
    fg.save_npz(fg.Graph(graph.edge_index, graph.x), tmp_path / "g.npz")
    (tmp_path / "distance.py").write_text((FILES / "distance.py").read_text())
    common = [
        "--task", "link", "--decoder", "distance.py:Distance", "-t", "out=8", "-t", "embedding=12", "-t", "test=0.2",
        "--epochs", 6, "--eval-every", 3, "--hidden", 16, "--dtype", "float64",
    ]  # fmt: skip
    for parts in (1, 2):
        done = fullgraph("train", "g.npz", "--parts", parts, *common, "--out", f"run{parts}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    one, two = (fg.FinishedRun(tmp_path / f"run{parts}") for parts in (1, 2))
    assert [r.loss for r in one.metrics] == pytest.approx([r.loss for r in two.metrics], abs=1e-9)
    assert one.result["test"] == pytest.approx(two.result["test"], abs=1e-9)
    assert (two.result["task"], two.result["metric"]) == ("link", "roc_auc")
    rows, pairs = two.prediction("embeddings"), two.prediction("pairs")
    assert rows.shape == (200, 12)
    np.testing.assert_allclose(rows, one.prediction("embeddings"), atol=1e-6)
    np.testing.assert_array_equal(pairs, one.prediction("pairs"))
    weights = load_file(two.folder / "model.safetensors")
    mapped = torch.from_numpy(rows).double() @ weights["pair_decoder.lin.weight"].T
    scores = weights["pair_decoder.bias"] - (mapped[pairs[:, 0]] - mapped[pairs[:, 1]]).square().sum(1)
    np.testing.assert_allclose(two.predictions, scores.sigmoid(), atol=1e-5)
    assert type(two.model.pair_decoder).__name__ == "Distance"
    done = fullgraph("predict", "run2", "--out", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "again" / "scores.npy"), two.predictions)


def test_regression_from_the_shell(tmp_path):
    graph = random_graph(nodes=200, arcs=800, features=10)
    masks = {name: getattr(graph, f"{name}_mask")[:, 0] for name in ("train", "val", "test")}
    y = np.where(masks["train"] | masks["val"] | masks["test"], graph.x[:, 0] + graph.x[:, 1], np.nan)
    fg.save_npz(fg.Graph(graph.edge_index, graph.x, y, masks), tmp_path / "g.npz")
    for parts in (1, 2):
        done = fullgraph("train", "g.npz", "--parts", parts, "--epochs", 30, "--hidden", 16, "--loss", "huber",
                         "--dropout", 0, "--dtype", "float64", "--out", f"run{parts}", cwd=tmp_path)  # fmt: skip
        assert done.returncode == 0, done.stderr
    one, two = (fg.FinishedRun(tmp_path / f"run{parts}") for parts in (1, 2))
    assert one.result["test"] == pytest.approx(two.result["test"], abs=1e-9)
    assert two.result["metric"] == "rmse"
    assert two.result["test"] < y[masks["test"]].std() / 2  # it learned something
    done = fullgraph("compare", "run1", "run2", "--target", two.result["val"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "never" not in done.stdout


# --- refused input

WRONG = {
    "mean": (("--loss", "torch.nn.functional:cross_entropy"), "cross_entropy returns the mean of its rows"),
    "loss": (("--loss", "mse"), "loss 'mse' does not fit 4-class data; use one of: cross_entropy"),
    "unknown loss": (("--loss", "hinge"), "loss 'hinge' is unknown; known: cross_entropy, bce, mse, mae, huber; or"),
    "closure": (("--optimizer", "torch.optim:LBFGS"), "optimizer LBFGS runs the model several times per step"),
    "no optimizer": (("--optimizer", "torch.nn:Linear"), "torch.nn:Linear is no optimizer: it has no build"),
    "decay": (("--optimizer", f"{__file__}:Counting", "--weight-decay", 0.1), "takes no weight_decay; leave out"),
    "option": (("-t", "gama=2"), "training has no option gama; known: epochs="),
    "callback": (("--callback", "nowhere.py:x"), "nowhere.py: it does not exist"),
    "task": (("--task", "ranking"), "task 'ranking' is unknown; known: classification, regression, link; or"),
    "decoder": (("--decoder", "dot"), "training has no option decoder"),
    "metric": (("--metric", "mrr"), "metric 'mrr' does not fit 4-class data; use one of: accuracy"),
    "pipeline": (("--task", "link", "--strategy", "gnnpipe"), "no stage of a pipeline holds the rows of all pairs"),
    "inductive": (("--task", "link", "--inductive"), "link prediction has none; leave it out"),
    "shares": (("--task", "link", "-t", "val=0.6", "-t", "test=0.5"), "leave a split empty: choose other shares"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_work_is_one_line(name, tmp_path, monkeypatch, capfd):
    """In this process: importing torch for every line would take minutes."""
    args, text = WRONG[name]
    fg.save_npz(random_graph(nodes=100, arcs=500), tmp_path / "g.npz")
    monkeypatch.chdir(tmp_path)
    command = ["fullgraph", "train", "g.npz", "--epochs", "3", "--out", "run", *map(str, args)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    told = capfd.readouterr().err
    assert (stop.value.code, told.count("\n")) == (2, 1), told
    assert text in told
    assert not (tmp_path / "run").exists()


def test_what_a_checkpoint_cannot_hold_is_one_line():
    weight = torch.nn.Parameter(torch.ones(2))
    hoarding = OPTIMIZERS.make(f"{__file__}:Hoarding").build([weight], lr=0.1, weight_decay=0.0)
    weight.sum().backward()
    hoarding.step()
    with pytest.raises(InputError, match="optimizer Hoarding keeps 'all' as a list, which a checkpoint cannot hold"):
        state_tensors(hoarding)


def test_what_no_file_can_hold_is_refused_in_python(tmp_path):
    for option, value in {
        "loss": torch.nn.CrossEntropyLoss(reduction="none"),
        "metric": partial(F.cross_entropy, reduction="none"),
        "callbacks": [Listening()],
        "task": 3,
    }.items():
        with pytest.raises(InputError, match=f"{option}=.* a {option.replace('backs', 'back')}, or the name of one"):
            fg.train(random_graph(), out=tmp_path / "run", **{option: value})
    with pytest.raises(InputError, match="defined inside a function"):
        fg.train(random_graph(), out=tmp_path / "run", loss=lambda logits, target: logits)
    assert not (tmp_path / "run").exists()
