"""Errors in users' own files: a sample of the campaign, and how they are shown."""

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
import typer

import fullgraph as fg
from faults import user_files
from faults.command import Command, complaints
from faults.user_files.files import GRAPH, KINDS, NET
from fullgraph.errors import InputError, PeerLost, explain
from fullgraph.nn.model import make_norm
from fullgraph.own_code import MOST_TRACE, PACKAGE, OwnCodeError, as_own, own_code, own_frames
from fullgraph.partition import partition
from fullgraph.tasks import node_task
from tests.reliability import own_things
from tests.support import random_graph

pytest.importorskip("torch_geometric")
HERE = "own_things.py"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=list(KINDS))
@pytest.mark.parametrize("lap", [3, 9])
def test_a_sample_of_the_campaign(kind, lap, shared):
    assert user_files.trial(lap * len(KINDS) + kind, shared, real=False)


def test_every_edit_applies_to_the_pages_example():
    lost = [(name, old) for name, kind in KINDS.items() for old, _ in kind.swaps if old not in kind.text]
    assert not lost


NOT_ROWS = {
    "fewer rows": ("out[:3]", r"returned a Tensor of float32, \(3, 8\) in layer 1: return 2?\d rows of 8 numbers"),
    "more rows": (
        "torch.cat([out, out])",
        r"returned a Tensor of float32, \(\d+, 8\) in layer 1: return \d+ rows of 8",
    ),
    "no rows": ("out[:0]", r"returned a Tensor of float32, \(0, 8\) in layer 1: return \d+ rows"),
    "numbers": ("out[:, 0]", r"returned a Tensor of float32, \(\d+,\) in layer 1: return \d+ rows"),
    "columns": ("out.t()", r"returned a Tensor of float32, \(8, \d+\) in layer 1: return \d+ rows"),
    "whole numbers": ("out.long()", r"returned a Tensor of int64, \(\d+, 8\) in layer 1: return \d+ rows of 8 numbers"),
    "a tuple": ("(out, out)", "returned a tuple in layer 1: return"),
    "None": ("None", "returned None in layer 1: return"),
    "NumPy": ("out.detach().numpy()", r"returned a ndarray of float32, \(\d+, 8\) in layer 1: return"),
}


@pytest.mark.parametrize("strategy", ["pipegcn", "gnnpipe"])
@pytest.mark.parametrize("name", NOT_ROWS)
def test_a_convolution_that_returns_other_rows_is_told_its_layer(name, strategy, shared):
    kind, (found, words) = KINDS["stack"], NOT_ROWS[name]
    last = "return own - self.share * mean"
    assert last in kind.text
    text = kind.text.replace(last, f"import torch; out = own - self.share * mean; return {found}")
    file = f"conv_{strategy}_{name.replace(' ', '_')}.py"
    command = (*kind.command, "--strategy", strategy)
    _, err = user_files.tried(file, text.encode(), command, shared, what=found, must_fail=True)
    assert re.match(rf"fullgraph: error: {file}:10: ContrastConv {words}", err), err


@pytest.mark.parametrize(
    ("found", "words"),
    [("h[h[:, 0] > 0]", r"returned shape \(\d+, 8\) for \d+ nodes"), ("h.to_sparse()", "returned a sparse tensor for"),
     ("self.last(h, edge_index).long()", r"returned a Tensor of int64, \(\d+, 3\) for 3-class data")],
    ids=["fewer rows", "sparse", "whole numbers"],
)  # fmt: skip
def test_a_model_that_returns_other_rows_is_told(found, words, shared):
    kind = KINDS["net"]
    text = kind.text.replace("return self.last(h, edge_index)", f"return {found}")
    file = f"net_{abs(hash(found))}.py"
    command = (*kind.command, "--no-check")
    _, err = user_files.tried(file, text.encode(), command, shared, what=found, must_fail=True)
    assert re.match(rf"fullgraph: error: {file}:14: the model {words}", complaints(err)[0]), err


# --- as a user sees it


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [(("h = self.first", "1 / 0; h = self.first"), "net.py:15", "ZeroDivisionError: division by zero"),
     (("return self.last(h, edge_index)", "return None"), "net.py:14", "the model returned NoneType"),
     (("hidden, out_channels)", "hidden, 1)"), "net.py:14", "return a row of 3 numbers for each node"),
     (("self.last(h, edge_index)", "self.last(h, edge_index).detach()"), "net.py:14", "without a gradient"),
     (("edge_index).relu()", "edge_index).relu().exp_()"), "net.py:7", "modified by an inplace operation"),
     (("forward(self, x", "forward(self, another, x"), "net.py:14", "the forward of Net takes another, which the"),
     (("    def forward", "    def parameters(self):\n        return 1\n\n    def forward"), "net.py:7", "iterable"),
     (("    def forward", "    def state_dict(self):\n        pass\n\n    def forward"), "net.py:14", "returned None")],
    ids=["raises", "None", "width", "detached", "backward", "argument", "parameters", "state"],
)  # fmt: skip
def test_two_ranks_say_it_once(change, place, words, tmp_path):
    assert change[0] in NET
    (tmp_path / "net.py").write_text(NET.replace(*change))
    options = ("--parts", "2", "--epochs", "3", "--threads", "1", "--out", "run", "--no-check")
    with Command("train", GRAPH, "--model", "net.py:Net", *options, cwd=tmp_path) as command:
        assert command.finish().code == 2, command.err
        line, *below = command.complaints
        assert line.startswith(f"fullgraph: error: {place}: ")
        assert words in line
        assert all(one.startswith("  ") for one in below)
        assert sum("File" in one for one in below) == (1 if "Zero" in words else 0)


@pytest.mark.cold
def test_a_library_that_stands_on_pythonpath_is_not_a_users_file(tmp_path, monkeypatch):
    """As with `pip install --target`, or the modules of a cluster: typer's frames are in every traceback."""
    folder = tmp_path / "modules"
    (folder / "typer-1.0.dist-info").mkdir(parents=True)
    (folder / "typer").symlink_to(Path(typer.__file__).parent)
    (tmp_path / "run.toml").write_text("epochs = 'five'\n")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    with Command("train", GRAPH, "--config", "run.toml", "--out", "run", cwd=tmp_path) as command:
        assert command.finish().code == 2, command.err
        assert command.complaints[0].startswith("fullgraph: error: run.toml:1: ")
        assert len(command.complaints) == 1
    assert not (tmp_path / "run").exists()


def test_from_python_it_is_an_input_error_with_the_frames_as_a_note():
    with pytest.raises(InputError, match=rf"{HERE}:\d+: KeyError: 'nothing'") as caught:
        fg.train(GRAPH, loss=own_things.Failing(), parts=2, epochs=2)
    shown = "".join(traceback.format_exception_only(caught.value))
    assert shown.count("in __call__") == 1
    assert "fullgraph/tasks" not in shown


SCRIPT = """
import sys
import torch
import fullgraph as fg
from net import Net

GRAPH = "sbm:nodes=60,edges=200,features=8,classes=3"


def loop():
    shard = fg.open_shard(GRAPH)
    model = fg.distribute(Net(8, 8, 3), shard)
    for _ in range(4):
        out = model(shard.x, shard.edge_index)
        fg.mean_loss(out.sum(1), shard).backward()
        fg.sync_gradients(model)


def train():
    fg.train(GRAPH, model=Net, epochs=2)


if __name__ == "__main__":
    train() if sys.argv[1] == "train" else loop()
"""
LATE_HOOK = """self.n = getattr(self, 'n', 0) + self.training
        if self.n > 3 and self.training: h.register_hook(lambda g: g - g.mean(0))
        return"""


@pytest.mark.cold
@pytest.mark.parametrize(
    ("how", "change", "lines"),
    [("train", ("h = self.first", "1 / 0; h = self.first"), ["train()", "fg.train(", "1 / 0"]),
     ("loop", ("h = self.first", "1 / 0; h = self.first"), ["loop()", "out = model(", "1 / 0"]),
     ("loop", ("return self", LATE_HOOK + " self"), ["loop()", ".backward()"])],
    ids=["train", "a call", "a backward pass"],
)  # fmt: skip
def test_a_traceback_in_python_has_frames_of_the_user_alone(how, change, lines, tmp_path):
    (tmp_path / "net.py").write_text(NET.replace(*change))
    (tmp_path / "script.py").write_text(SCRIPT)
    line = [sys.executable, "script.py", how]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    trace = done.stderr[done.stderr.index("Traceback") :]
    files = [match[1] for match in re.finditer(r'  File "([^"]*)"', trace)]
    assert files
    assert all(Path(file).parent == tmp_path for file in files), trace
    shown = trace.splitlines()
    assert [word for word in lines if any(word in one for one in shown)] == lines
    assert len([one for one in shown if one.startswith("fullgraph.")]) == 1


def test_an_error_that_is_caught_has_one_frame_of_ours():
    with pytest.raises(InputError) as caught:
        fg.train(GRAPH, loss=own_things.Failing(), parts=2, epochs=2)
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if PACKAGE in frame.filename]
    assert [frame.name for frame in frames] == ["call"]


def test_a_partitioner_that_returns_an_array_is_told_what_to_return():
    with pytest.raises(InputError, match=rf"{HERE}:\d+: .*Dealt returned a ndarray of int64, \(60,\): return"):
        partition(random_graph(nodes=60, arcs=200), 2, own_things.Dealt())


def test_a_module_whose_getattr_fails_is_told_the_line(tmp_path):
    failing = "def __getattr__(self, name):\n        return {}[name]\n\n    def forward"
    (tmp_path / "net.py").write_text(NET.replace("def forward", failing))
    done = subprocess.run(
        [sys.executable, "-m", "fullgraph", "train", GRAPH, "--model", "net.py:Net", "--epochs", "2", "--out", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.search(r"fullgraph: error: net\.py:15: .*KeyError", done.stderr)
    assert "Traceback" not in done.stderr


# --- the mechanism


def test_what_is_nobodys_own_passes_as_it_is():
    with pytest.raises(KeyError) as caught:
        make_norm("no such norm", 8)
    of_ours = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert as_own(of_ours) is None
    assert as_own(of_ours, [fg.InputError, "a text", 3]) is None
    assert as_own(of_ours, [own_things.Failing]) is not None
    for error in (PeerLost("gone"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with pytest.raises(type(error)) as caught, own_code(own_things.Failing):
            own_things.fail(error)
        assert caught.value is error
    assert "out of memory" in str(explain(MemoryError()))


@pytest.mark.parametrize("error", [own_things.Silent(), SystemExit(0), ValueError("two\nlines \x1b[31m"), KeyError()])
def test_any_error_is_one_printable_line(error):
    with pytest.raises(OwnCodeError, match=rf"{HERE}:\d+: ") as caught, own_code():
        own_things.fail(error)
    assert str(caught.value).isprintable()
    assert caught.value.trace.startswith('  File "')


def test_a_trace_is_short():
    with pytest.raises(OwnCodeError) as caught, own_code():
        own_things.again()
    assert "more times]" in caught.value.trace
    assert len(caught.value.trace) <= MOST_TRACE


def test_only_frames_of_users_are_told():
    logits, target = torch.randn(5, 3, requires_grad=True), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(OwnCodeError) as caught:
        node_task(classes=3, loss=own_things.Failing()).loss(logits, target, 5)
    assert [frame.name for frame in own_frames(caught.value.__context__)][-1:] == ["__call__"]
    assert "losses.py" not in caught.value.trace
