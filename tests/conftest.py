"""Fixtures of every test."""

from collections.abc import Iterator

import pytest

from fullgraph.testing.leaks import Snapshot, leaks, restore_environ


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """A test that leaves a thread, a process group, an environment variable or a child process behind fails."""
    before = Snapshot()
    yield
    found = leaks(before)
    restore_environ(before)
    assert found == [], "the test left behind:\n" + "\n".join(found)
