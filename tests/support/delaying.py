"""A slow wire without a network."""

import time
from typing import Generic, TypeVar

from torch import Tensor

from fullgraph.transport import PLAIN, Coding, Key, Pending, Transport, cost_of
from fullgraph.transport.wrappers import _Wrapper

T = TypeVar("T")


class _Late(Generic[T]):
    def __init__(self, pending: Pending[T], due: float) -> None:
        self.pending, self.due = pending, due

    def wait(self) -> T:
        time.sleep(max(0.0, self.due - time.perf_counter()))
        return self.pending.wait()


class Delaying(_Wrapper):
    """Delays every message until `latency + bytes / rate` seconds have passed."""

    def __init__(self, inner: Transport, *, latency: float = 0.0, rate: float = float("inf")) -> None:
        super().__init__(inner)
        self.latency, self.rate = latency, rate

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        seconds = self.latency + sum(incoming.values()) / self.rate
        return _Late(self.inner.begin(key, outgoing, incoming, coding), time.perf_counter() + seconds)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        seconds = self.latency + cost_of(x.nbytes, self.size).bytes / self.rate
        return _Late(self.inner.all_reduce(key, x), time.perf_counter() + seconds)

    def fork(self) -> "Delaying":
        return Delaying(self.inner.fork(), latency=self.latency, rate=self.rate)
