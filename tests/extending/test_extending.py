"""Codecs, schedules, partitioners, metrics, models and strategies, each in one file outside the package.

The files are those of docs/extending.md.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph.codec import CODECS
from fullgraph.data import save_npz
from fullgraph.errors import InputError
from fullgraph.exchange import SCHEDULES
from fullgraph.nn import MODELS
from fullgraph.partition import partition
from fullgraph.recipes import STRATEGIES
from fullgraph.reference import load
from fullgraph.run import Run
from fullgraph.storage import sealed
from fullgraph.tasks import METRICS
from fullgraph.testing import assert_schedule_law, assert_size_law, run_threads
from fullgraph.transport import Key, SingleRank
from tests.support import CASES, assert_same, coded, random_graph, stale_trace, train_trace

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs" / "extending"
TOPK, FRESH, DEGREE, F1, CONTRAST, THRIFTY = (
    f"{FILES / file}.py:{name}"
    for file, name in {
        "topk": "TopK", "fresh_first": "FreshFirst", "by_degree": "ByDegree", "macro_f1": "macro_f1",
        "contrast": "Contrast", "thrifty": "Thrifty",
    }.items()
)  # fmt: skip
CASE, STEPS = CASES["directed"], 6
pytestmark = pytest.mark.timeout(600)  # several runs from the shell share one fixture
SAGE = fg.nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True)


def fullgraph(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("file", sorted(FILES.glob("*.py")), ids=lambda path: path.stem)
def test_the_files_are_short_and_in_the_document(file):
    text = file.read_text()
    assert len(text.splitlines()) <= 50
    assert f"```python\n{text}```" in (ROOT / "docs" / "extending.md").read_text()


# --- each keeps the laws of its axis


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (7, 12), (3, 2, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_codec(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = assert_size_law(CODECS.make(TOPK, k="3"), x, Key("law", 0))
    x_nD, got_nD = x.flatten(1), got.flatten(1)
    assert ((got_nD == x_nD) | (got_nD == 0)).all()
    assert ((got_nD != 0).sum(1) == min(3, x_nD.shape[1])).all()
    assert (got_nD.abs().sum(1) >= x_nD.abs().topk(min(3, x_nD.shape[1])).values.sum(1) - 1e-6).all()


def test_the_schedule():
    schedule = SCHEDULES.make(FRESH, first="3")
    assert_schedule_law(schedule)
    assert [schedule.turn(step).read for step in range(6)] == [0, 1, 2, 2, 3, 4]


def test_codec_and_schedule_equal_their_equations():
    """Named as in the shell, and compared with the dense algebra of late rows that cross through a codec."""
    strategy = STRATEGIES.make("free", codec=TOPK, k="5", schedule=FRESH, first="3")
    graph, assignment = CASE(3)
    part, codec = torch.from_numpy(assignment.part.copy()), load(TOPK)(5)
    read = lambda step: step if step < 3 else step - 1  # noqa: E731
    want = stale_trace(graph, part, SAGE, read, STEPS, narrow_first=False, cross=coded(graph, part, codec, codec))
    assert_same(run_threads(3, partial(train_trace, strategy=strategy), CASE, SAGE, STEPS), *want)


def test_the_partitioner():
    graph = random_graph(nodes=100, arcs=700)
    found = partition(graph, 4, DEGREE)
    assert np.bincount(found.part).tolist() == [25] * 4
    assert found.method == "by_degree.py:ByDegree"
    arcs = [int(np.diff(graph.indptr)[found.part == part].sum()) for part in range(4)]
    assert max(arcs) < 1.05 * np.mean(arcs)
    assert (partition(graph, 4, DEGREE, back_and_forth="false").part != found.part).any()


def test_the_metric():
    logits, target = torch.eye(3)[[0, 0, 1, 2, 2, 1]], torch.tensor([0, 1, 1, 2, 0, 1])
    f1 = [2 / 4, 4 / 5, 2 / 3]
    assert METRICS[F1](logits, target, SingleRank(), Key("f1", 0)) == pytest.approx(sum(f1) / 3)


@pytest.mark.parametrize("case", ["directed", "sparse"])
def test_the_model_does_not_depend_on_the_ranks(case):
    spec = MODELS.make(CONTRAST, layers=3, hidden=16, share="0.5")
    one, three = (run_threads(ranks, train_trace, CASES[case], spec, 3)[0] for ranks in (1, 3))
    torch.testing.assert_close(one["losses"], three["losses"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(one["grads"], three["grads"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_model_computes_only_rows_that_are_read(parts, tmp_path):
    """The default strategy: rows that no loss reads are left out, and nothing changes."""
    graph = random_graph(nodes=200, arcs=300, train=np.arange(200) % 20 == 0)
    model, options = load(CONTRAST)(layers=3, hidden=16), {"parts": parts, "epochs": 4, "dtype": "float64"}
    runs = [fg.train(graph, model=model, all_rows=rows, out=tmp_path / f"{rows}", **options) for rows in (False, True)]
    fewer, all_rows = (
        [layer["rows"] for layer in json.loads((run.folder / "profile.json").read_text())["plan"]] for run in runs
    )
    assert fewer[0] < 200
    assert all_rows == [200] * 3
    assert [r.loss for r in runs[0].metrics] == pytest.approx([r.loss for r in runs[1].metrics], abs=1e-12)
    np.testing.assert_allclose(runs[0].probabilities, runs[1].probabilities, atol=1e-12)


# --- all of them from the shell, on two ranks


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a graph, copies of the files, and a run that names them all."""
    folder = tmp_path_factory.mktemp("home")
    save_npz(random_graph(nodes=300, arcs=1500, features=10), folder / "g.npz")
    for file in FILES.glob("*.py"):
        (folder / file.name).write_text(file.read_text())
    done = fullgraph(
        "train", "g.npz", "--parts", 2, "--epochs", 4, "--eval-every", 2, "--checkpoint-every", 2, "--hidden", 16,
        "--model", "contrast.py:Contrast", "-m", "share=0.5",
        "--strategy", "free", "-o", "codec=topk.py:TopK", "-o", "k=4", "-o", "schedule=fresh_first.py:FreshFirst",
        "-o", "first=2", "--partitioner", "by_degree.py:ByDegree", "-p", "back_and_forth=false",
        "--metric", "macro_f1.py:macro_f1", "--all-rows", "--out", "run", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_from_the_shell(home):
    result = fg.FinishedRun(home / "run").result
    assert (result["model"], result["metric"]) == ("contrast.py:Contrast", "macro_f1.py:macro_f1")
    assert result["partition"]["method"] == "by_degree.py:ByDegree"
    # layers 1 and 2 send their 16 inputs, of which 4 numbers of 4 bytes with a place each; layer 0 is precomputed
    assert result["bytes_per_epoch"] == 2 * 2 * 4 * 8 * result["partition"]["halo_rows"]


def test_the_config_names_files_in_full(home):
    config = json.loads((home / "run" / "config.json").read_text())
    assert config["schema"] == 3
    assert config["strategy"]["codec"] == {"name": f"{home / 'topk.py'}:TopK", "k": 4}
    assert config["model"]["share"] == 0.5
    assert config["train"]["metric"] == f"{home / 'macro_f1.py'}:macro_f1"
    assert len(config["files"]) == 5
    assert Run.read(home / "run").strategy.codec.k == 4


def test_it_is_predicted_and_resumed_from_elsewhere(home, tmp_path):
    done = fullgraph("predict", home / "run", "--out", "again", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    classes = np.load(tmp_path / "again" / "classes.npy")
    np.testing.assert_array_equal(classes, fg.FinishedRun(home / "run").predictions)
    done = fullgraph("train", "--resume", home / "run", "--epochs", 6, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert fg.FinishedRun(home / "run").result["epochs"] == 6


def test_an_edited_file_is_refused(home):
    file = home / "topk.py"
    text = file.read_text()
    try:
        file.write_text(text + "\nprint('run')\n")
        done = fullgraph("train", "--resume", "run", "--epochs", 9, cwd=home)
        words = {line.split(":")[0] for line in done.stdout.splitlines()}  # a busy machine is told the seconds, too
        assert (done.returncode, words, done.stderr.count("\n")) == (2, {"starting"}, 1)
        assert f"{file} has changed since the run in run began" in done.stderr
        file.unlink()
        done = fullgraph("predict", "run", "--out", "again", cwd=home)
        assert (done.returncode, "topk.py" in done.stderr, done.stderr.count("\n")) == (2, True, 1)
    finally:
        file.write_text(text)


def test_a_file_without_its_checksum_is_refused(home):
    path = home / "run" / "config.json"
    before = path.read_text()
    tree = json.loads(before)
    tree.pop("checksum")
    try:
        path.write_text(json.dumps(sealed({**tree, "files": {}})))
        with pytest.raises(InputError, match="has changed since the run"):
            Run.read(home / "run")
    finally:
        path.write_text(before)


def test_a_run_of_before_is_refused(home):
    path = home / "run" / "config.json"
    before = path.read_text()
    try:
        path.write_text(json.dumps(sealed({"id": "", "graph": "demo", "strategy": {"name": "vanilla"}})))
        done = fullgraph("predict", "run", cwd=home)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "schema 1, this version reads schema 3; start a new run" in done.stderr
    finally:
        path.write_text(before)


def test_a_strategy_and_a_module_from_python(home, monkeypatch, tmp_path):
    """The same names, and values, in one call; a package below the current folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "models.py").write_text((FILES / "contrast.py").read_text())
    monkeypatch.chdir(tmp_path)
    graph, thrifty = random_graph(nodes=200, arcs=900, features=6), load(THRIFTY)(every=3)
    run = fg.train(graph, model="mine.models:Contrast", strategy=thrifty, parts=2, epochs=2, out="r")
    assert run.result["strategy"] == "thrifty.py:Thrifty"
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["strategy"] == {"name": THRIFTY, "every": 3, "bits": 4}
    assert config["model"]["name"] == "mine.models:Contrast"


# --- refused input


WRONG = {
    "no_such.py:TopK": "no_such.py: it does not exist",
    "topk.py:TopQ": "topk.py has no TopQ; it has",
    "fresh_first.py:FreshFirst": "is no codec: it has no encode, decode, nbytes",
    "nowhere.at.all:TopK": "nowhere.at.all cannot be run (ModuleNotFoundError",
    "broken.py:TopK": "broken.py:1: SyntaxError: invalid syntax; the file cannot be run",
    "stops.py:TopK": "stops.py:1: SystemExit(3): code that a run calls must not end the process",
    "loose.py:TopK": "has to be a frozen dataclass",
    "topq": "codec 'topq' is unknown; known: full, half, bf16, lowbit, subsample, adaqp; or name your own",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_names_are_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (FILES / "topk.py").read_text()
    texts = {
        "topk": text, "fresh_first": (FILES / "fresh_first.py").read_text(), "broken": "class TopK(:\n",
        "stops": "raise SystemExit(3)\n", "loose": text.replace("@dataclass(frozen=True)\n", "").replace("(Value)", ""),
    }  # fmt: skip
    for stem, content in texts.items():
        (tmp_path / f"{stem}.py").write_text(content)
    with pytest.raises(InputError) as caught:
        STRATEGIES.make("free", codec=name)
    assert WRONG[name] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"codec": TOPK, "k": "0"}, "k=0: at least 1"),
        ({"codec": TOPK, "k": "many"}, "k=many: a whole number"),
        (
            {"codec": TOPK, "bits": "2"},
            "has no option bits; known: narrow=false, cover=false, by_host=false, schedule=pipelined, lag=1",
        ),
        ({"codec": "half", "bits": "2"}, "has no option bits"),
        (
            {"schedule": "skip", "lag": "2"},
            "has no option lag; known: narrow=false, cover=false, by_host=false, schedule=pipelined, every=2",
        ),
    ],
)
def test_options_belong_to_what_was_named(options, text):
    with pytest.raises(InputError, match=text):
        STRATEGIES.make("free", **options)


@pytest.mark.parametrize(
    ("codec", "way"),
    [("lowbit", "sylvie-s"), ("subsample", "fixed"), (TOPK, "free -o schedule=sync -o codec=topk.py:TopK")],
)
def test_vanilla_is_exact(codec, way):
    with pytest.raises(InputError, match=f"vanilla is exact training; use --strategy {way}"):
        STRATEGIES.make("vanilla", codec=codec)


def test_wrong_values_in_python_are_one_line():
    for wrong, text in {"model": "model=3: a model, or the name of one: gcn", "strategy": "a strategy, or"}.items():
        with pytest.raises(InputError, match=text):
            fg.train("demo", **{wrong: 3})
    with pytest.raises(InputError, match=r"fg\.train has unknown keys epoch \(did you mean epochs\?\); known: epochs"):
        fg.train("demo", epoch=3)
    with pytest.raises(InputError, match="a model, or the name of one"):
        fg.train("demo", model=fg.nn.GCN)


SCRIPT = """
from dataclasses import dataclass
import fullgraph as fg
from tests.support import random_graph

@dataclass(frozen=True)
class Same:
    depth = 0
    def turn(self, step):
        return fg_turn(send=True, read=step)

from fullgraph.exchange import Turn as fg_turn
{guard}
    run = fg.train(random_graph(), strategy=fg.recipes.free(schedule=Same(), codec="full"), parts=2, epochs=2, out="r")
    print(run.result["strategy"])
"""


@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', "if True:"])
def test_a_class_of_a_script_of_ones_own(guard, tmp_path):
    """Ranks run the script again: its training must be under the usual guard."""
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=300
    )
    if "name" in guard:
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["free"]), done.stderr
    else:
        assert done.returncode == 1
        assert "script.py trains when it is imported; put that under: if __name__ == '__main__':" in done.stderr
        assert not (tmp_path / "r").exists()


def test_a_class_inside_a_function_cannot_be_found_again(tmp_path):
    kind = type("Local", (load(FRESH),), {"__qualname__": "f.<locals>.Local", "__module__": __name__})
    with pytest.raises(InputError, match="defined inside a function"):
        fg.train(random_graph(), strategy=fg.recipes.free(schedule=kind()), out=tmp_path / "run")
    assert not (tmp_path / "r").exists()
