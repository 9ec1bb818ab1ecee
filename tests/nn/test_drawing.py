"""One thread at a time draws weights, and the default type is restored whichever thread was first."""

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
    """A lock that signals when a second thread waits for it."""

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
    """The second thread comes while the first draws in float32; it must not take float32 for the default."""
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
