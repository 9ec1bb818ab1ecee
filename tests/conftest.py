"""Fixtures of all tests."""

import gc
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from fullgraph.transport import ranks
from tests import warm
from tests.support.leaks import Snapshot, leaks, restore_environ

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is first imported
SIGNALS = (signal.SIGHUP, signal.SIGTERM)
for number in SIGNALS:  # commands that tests start would ignore what this process ignores
    signal.signal(number, signal.SIG_DFL)
if "PYTHONPATH" in os.environ:  # commands that tests start have other working folders
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ["PYTHONPATH"].split(os.pathsep)))
ranks.PRELOADED += ["pytest", "torch_geometric.nn"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="every case of the tests that are marked as sweeps")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--sweep"):
        _sample(config, items)
    items.sort(key=_patience, reverse=True)


def pytest_collection_finish() -> None:
    gc.freeze()  # imported objects stay alive: a tenth of the tests' time went into collecting garbage among them


def _patience(item: pytest.Item) -> float:
    """Run the longest tests first, so that no process ends with one of them."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the cases so that each value of each parameter of a sweep is in at least one."""
    seen: dict[str, set[tuple[str, int]]] = {}
    left = set()
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        if item.get_closest_marker("sweep"):
            values = {(name, id(value)) for name, value in item.callspec.params.items()}  # type: ignore[attr-defined]
            known = seen.setdefault(item.nodeid.partition("[")[0], set())
            if values <= known:
                left.add(item)
            known |= values
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> Iterator[None]:
    """Commands that tests start are forked from a process with torch, except where the start itself is tested.

    On a machine with a GPU all commands start normally: its driver does not survive a fork (transport/ranks.py).
    """
    with nullcontext() if torch.cuda.is_available() else warm.kept():
        yield


@pytest.fixture(autouse=True)
def cold_commands(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("cold"):
            patch.setattr(subprocess, "Popen", warm.COLD)
        yield


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """A test that leaves a thread, a process group, an environment variable or a child process behind fails."""
    before = Snapshot()
    yield
    found = leaks(before)
    restore_environ(before)
    assert found == [], "the test left behind:\n" + "\n".join(found)


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """A command that ran in this process ignores signals from its end on (cli.py); later tests must not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *SIGNALS, signal.SIGCHLD)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small operands are fastest with one thread, above all if other programs use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's kernels run on CPU tensors, one numpy call per operation: only for small operands."""
    if torch.cuda.is_available():
        pytest.skip("on a machine with a GPU the kernels are compiled; test_cuda.py has them")
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        # Triton 3.6 keeps scalars as arrays of one number, which numpy 2.4 no longer takes for a bound of a range.
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())  # type: ignore[attr-defined]

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setenv("FULLGRAPH_KERNELS", "triton")
    with np.errstate(all="ignore"):  # a GPU computes inf - inf, and unused lanes, silently
        yield


@pytest.fixture
def say(monkeypatch, capfd, tmp_path):
    """Run a command in this process and this folder: (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["fullgraph", *map(str, args)])
        from fullgraph.cli import main

        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, *capfd.readouterr()

    return run
