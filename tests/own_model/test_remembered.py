"""A model that passed the self-check is not checked again until anything that the check depends on changes."""

import json
import os
import subprocess
import sys

import pytest

from fullgraph.data import save_npz
from fullgraph.errors import InputError
from fullgraph.own_model import remembered
from fullgraph.own_model.remembered import PassedChecks
from fullgraph.reference import load
from fullgraph.storage import read_document, write_document
from tests.support import random_graph

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, in_channels, num_classes, hidden=8):
        super().__init__()
        self.one, self.two = torch.nn.Linear(in_channels, hidden), torch.nn.Linear(hidden, num_classes)

    def forward(self, x, edge_index):
        rows = self.one(x).relu()
        return self.two(torch.zeros_like(rows).index_add(0, edge_index[1], rows[edge_index[0]]))
"""
PASSED = json.dumps([True, "", 1, 0])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The file of passed checks. Only files of the test's folder are the user's, and none of them is new."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "is_own_file", lambda place: place.startswith(str(tmp_path)))
    monkeypatch.setattr(remembered, "BEGUN", 2.0**40)
    monkeypatch.setattr(remembered, "_sources_of_package", lambda: "sources")
    known = set(sys.modules)
    yield tmp_path / "cache" / "fullgraph" / "checked.json"
    for name in set(sys.modules) - known:  # modules of the test's folder
        del sys.modules[name]


def checks(about=None, **facts):
    """How often a check ran for two runs alike."""
    ran = []

    def check():
        ran.append(1)
        return PASSED

    for _ in range(2):
        assert PassedChecks(about or {"seed": 1}).report(check, **facts) == PASSED
    return len(ran)


def test_a_passed_check_is_remembered_until_something_changes(cache, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    load(f"{tmp_path}/net.py:Net")
    assert checks() == 1
    assert checks() == 0
    assert checks({"seed": 2}) == 1
    assert checks(rank=1) == 1
    monkeypatch.setattr(remembered, "_versions", lambda: {"torch": "1"})
    assert checks() == 1
    monkeypatch.setattr(remembered, "_sources_of_package", lambda: "others")
    assert checks() == 1
    assert checks() == 0
    assert [path.name for path in cache.parent.iterdir()] == ["checked.json"]


def test_another_byte_of_any_file_is_another_model(cache, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for number, (net, helper) in enumerate([(NET, "A = 1"), (NET + "\n", "A = 1"), (NET, "A = 2")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (tmp_path / f"helper{number}.py").write_text(helper)
        (folder / "net.py").write_text(f"from helper{number} import A\n{net}")
        load(f"{folder}/net.py:Net")
        digests.append(dict(remembered._sources_of_user()))
    assert len(digests[-1]) == 6
    assert len(set(digests[-1].values())) == 5  # of helpers, two are alike


IMPURE = {
    "a file": "def f(path):\n    return open(path).read()",
    "the system": "import os",
    "part of the system": "from os import environ",
    "later": "def forward():\n    import os",
    "another library": "import scipy",
    "torch's files": "import torch\ndef f(path):\n    return torch.load(path)",
    "torch's files by name": "from torch import load",
    "numpy's draws": "import numpy as np\nRNG = np.random.default_rng()",
    "text as code": "eval('1')",
    "the machine": "import torch\nGPU = torch.cuda.is_available()",
}


@pytest.mark.parametrize("kind", IMPURE)
def test_code_that_may_read_something_else_is_always_checked(kind, cache, tmp_path):
    (tmp_path / "helper.py").write_text(IMPURE[kind])
    with pytest.raises(InputError, match="has no nothing"):
        load(f"{tmp_path}/helper.py:nothing")
    path = tmp_path / "pure.py"
    path.write_text(NET)
    load(f"{path}:Net")
    assert checks() == 2
    assert not cache.exists()


def test_a_file_that_is_not_surely_the_imported_one_is_always_checked(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "net.py").write_text(NET)
    module = sys.modules[load(f"{tmp_path}/net.py:Net").__module__]
    about = os.stat(tmp_path / "net.py")
    (tmp_path / "net.py").write_text(NET.replace("hidden=8", "hidden=9"))
    os.utime(tmp_path / "net.py", ns=(about.st_atime_ns, about.st_mtime_ns))  # Python keeps the old one's code
    assert module.Net.__init__.__defaults__ == (8,)
    assert checks() == 2
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setattr(remembered, "BEGUN", about.st_ctime - 1)
    assert checks() == 2


@pytest.mark.parametrize("text", ["__main__:Net", "scipy.sparse:csr_array", "json:dumps"])
def test_names_of_other_code_are_always_checked(text, cache):
    assert checks({"model": {"name": text}}) == 2
    assert checks({"model": {"name": "torch.nn:Linear"}, "split": "random:60/20/20"}) == 1


def test_failures_and_damaged_files(cache):
    def fails():
        raise InputError("the model mixes rows")

    with pytest.raises(InputError):
        PassedChecks({}).report(fails)
    assert not cache.exists()
    assert checks() == 1
    for damage in (b"", b"{", b"[1]", cache.read_bytes().replace(b"true", b"null"), b"\xff"):
        cache.write_bytes(damage)
        assert checks() == 1
    (key,) = read_document(cache, fix="")
    for report in ("", "[]", PASSED.replace("true", "false"), PASSED.replace("1", "null"), 7):
        write_document(cache, {key: report})
        assert checks() == 1
    cache.unlink()
    cache.mkdir()
    assert checks() == 2  # the folder in its place stays
    assert cache.is_dir()


def test_the_oldest_go_first(cache, monkeypatch):
    monkeypatch.setattr(remembered, "MOST", 3)
    for seed in range(5):
        assert checks({"seed": seed}) == 1
    assert len(read_document(cache, fix="")) == 3
    assert [checks({"seed": seed}) for seed in (4, 0)] == [0, 1]


@pytest.mark.cold  # a process that began before the file was written checks again
def test_a_second_run_of_an_unchanged_file(tmp_path):
    """The report of the first run's check is replaced, to see whether the second run reads it."""
    save_npz(random_graph(nodes=60, arcs=200, features=4, classes=3), tmp_path / "graph.npz")
    (tmp_path / "net.py").write_text(NET)
    cache = tmp_path / "cache" / "fullgraph" / "checked.json"
    command = [sys.executable, "-m", "fullgraph", "train", "graph.npz", "--model", "net.py:Net", "--epochs", "2"]

    def run(out):
        environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run([*command, "--no-report", "--out", out], cwd=tmp_path, env=environ, text=True,
                              capture_output=True, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / out / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines], "from before" in done.stderr

    losses, _ = run("one")
    (key,) = read_document(cache, fix="")
    write_document(cache, {key: json.dumps([True, "a note from before", 1, 0])})
    assert run("two") == (losses, True)
