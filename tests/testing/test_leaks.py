"""The leak check finds each kind of leak, and nothing else."""

import os
import subprocess
import sys
import threading

import pytest

from tests.support.leaks import KERNEL_POOL, Snapshot, leaks, restore_environ


@pytest.mark.parametrize(
    ("name", "daemon", "seen"),
    [
        ("worker", False, True),
        ("fullgraph-rank0", True, True),
        ("timer", True, False),
        (f"{KERNEL_POOL}-0", False, False),
    ],
)
def test_threads(name: str, daemon: bool, seen: bool) -> None:
    before, stop = Snapshot(), threading.Event()
    thread = threading.Thread(target=stop.wait, name=name, daemon=daemon)
    thread.start()
    try:
        assert leaks(before, patience_s=0) == ([f"thread {name!r} still runs"] if seen else [])
    finally:
        stop.set()
        thread.join()
    assert leaks(before) == []


def test_a_thread_that_is_ending_is_waited_for() -> None:
    before = Snapshot()
    threading.Timer(0.1, lambda: None).start()
    assert leaks(before) == []


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULLGRAPH_TEST_KEPT", "1")
    before = Snapshot()
    os.environ["FULLGRAPH_TEST_KEPT"] = "2"
    os.environ["FULLGRAPH_TEST_NEW"] = "3"
    assert leaks(before, patience_s=0) == [
        "environment variable FULLGRAPH_TEST_KEPT changed from '1' to '2'",
        "environment variable FULLGRAPH_TEST_NEW changed from None to '3'",
    ]
    restore_environ(before)
    assert leaks(before, patience_s=0) == []


def test_child_processes() -> None:
    before = Snapshot()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (line,) = leaks(before, patience_s=0)
        assert line.startswith(f"child process {child.pid} still runs: ")
        child.communicate(b"\n")
    assert leaks(before) == []


def test_process_groups() -> None:
    """In a child process: an open process group would be a leak of this test."""
    code = """
import torch.distributed as dist
from tests.support.leaks import Snapshot, leaks
before = Snapshot()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert leaks(before, patience_s=0) == ["a torch.distributed process group is still initialised"]
dist.destroy_process_group()
assert leaks(before) == []
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
