"""Fixtures of every test."""

from collections.abc import Iterator

import pytest
import torch

from fullgraph.testing.leaks import Snapshot, leaks, restore_environ


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """A test that leaves a thread, a process group, an environment variable or a child process behind fails."""
    before = Snapshot()
    yield
    found = leaks(before)
    restore_environ(before)
    assert found == [], "the test left behind:\n" + "\n".join(found)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small operands are fastest so, by far where other programs keep the cores busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
