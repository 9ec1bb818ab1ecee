"""Weights are drawn by one thread at a time, and the default type comes back whoever was first."""

import threading

import pytest
import torch

from fullgraph.nn import spec


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Watched:
    """A lock that tells when a second thread has come to it."""

    def __init__(self):
        self.lock, self.second_is_here = threading.Lock(), threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.second_is_here.set()
            self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()


@pytest.mark.timeout(60)
def test_two_threads_leave_the_default_type_as_it_was(float64, monkeypatch):
    """The second comes while the first draws in float32; it must not take that for the default."""
    lock = Watched()
    monkeypatch.setattr(spec, "_DRAWING", lock)
    seen = []

    def draw(seed):
        with spec.drawing(seed):
            seen.append(torch.get_default_dtype())

    with spec.drawing(0):
        second = threading.Thread(target=draw, args=(1,))
        second.start()
        assert lock.second_is_here.wait(30)
    second.join(30)
    assert seen == [torch.float32]
    assert torch.get_default_dtype() == torch.float64
