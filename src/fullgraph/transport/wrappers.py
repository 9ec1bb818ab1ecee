"""Wrappers that count, note, delay and check what passes; each is a transport around a transport."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fullgraph.transport.base import PLAIN, Coding, Pending, Transport
from fullgraph.transport.gather import rank_table
from fullgraph.transport.key import Key
from fullgraph.transport.sums import cost_of

T = TypeVar("T")


class _Wrapper(ABC):
    """Passes everything on."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.rank, self.size = inner.rank, inner.size

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        return self.inner.begin(key, outgoing, incoming, coding)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        return self.inner.all_reduce(key, x)

    @abstractmethod
    def fork(self) -> Transport: ...
    def away(self, text: str) -> AbstractContextManager[None]:
        return self.inner.away(text)

    def close(self) -> None:
        self.inner.close()


class _Timed(Generic[T]):
    def __init__(self, pending: Pending[T], waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self.pending, self.waiting = pending, waiting

    def wait(self) -> T:
        with self.waiting():
            return self.pending.wait()


Waiting = Callable[[Key], AbstractContextManager[None]]  # what stands around a wait


def _uncounted(key: Key) -> AbstractContextManager[None]:
    return nullcontext()


class Probe(Protocol):
    """Told of every message and of its work; a meter is one."""

    def message(self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding) -> Coding:
        """A message is posted now; returns its coding, which tells of itself, or the same one."""
        ...

    def span(self, kind: str, key: Key, peers: tuple[int, ...] = ()) -> AbstractContextManager[None]:
        """Around a piece of work for a message with these peers."""
        ...


class Counting(_Wrapper):
    """Reports the bytes that this rank sends, and stands around every wait; `sent` and `waiting` are told the key.

    Of a sum these are the bytes of its messages (`cost_of`), a share of what all ranks send: not always a whole number.
    probe: hears of every message besides, and of the time its rows take to become bytes and to come back.
    """

    def __init__(
        self, inner: Transport, sent: Callable[[Key, float], None], waiting: Waiting = _uncounted,
        probe: Probe | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self.sent, self.waiting, self.probe = sent, waiting, probe

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        self.sent(key, sum(coding.nbytes(peer, rows) for peer, rows in outgoing.items()))
        if self.probe is not None and coding is not PLAIN:
            coding = self.probe.message(key, outgoing, incoming, coding)
            with self.probe.span("send", key, tuple(outgoing)):
                pending = self.inner.begin(key, outgoing, incoming, coding)
        else:
            pending = self.inner.begin(key, outgoing, incoming, coding)
        return _Timed(pending, lambda: self.waiting(key))

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        self.sent(key, cost_of(x.nbytes, self.size).bytes)
        return _Timed(self.inner.all_reduce(key, x), lambda: self.waiting(key))

    def fork(self) -> "Counting":
        return Counting(self.inner.fork(), self.sent, self.waiting, self.probe)


@dataclass(frozen=True, slots=True)
class Noted:
    """One message or sum, as sizes alone."""

    fork: int  # 0: it was given to the transport itself, else to that fork of it
    key: Key
    outgoing: dict[int, int]  # bytes by peer
    incoming: dict[int, int]
    summed: Tensor | None = None  # of a sum: nothing, as long as it and of its type

    @property
    def nbytes(self) -> int:
        return sum(self.outgoing.values()) + (0 if self.summed is None else self.summed.nbytes)


class Recording(_Wrapper):
    """Notes the sizes of all that it is given, in order, in `notes`, while that is a list.

    `links` are the transport inside and its forks, by the number that a note names.
    """

    def __init__(self, inner: Transport, first: "Recording | None" = None) -> None:
        super().__init__(inner)
        self.first = first or self
        self.notes: list[Noted] | None = None
        self.links: list[Transport] = first.links if first else []
        self.number = len(self.links)
        self.links.append(inner)

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        if self.first.notes is not None:
            sizes = {peer: coding.nbytes(peer, rows) for peer, rows in outgoing.items()}
            self.first.notes.append(Noted(self.number, key, sizes, dict(incoming)))
        return self.inner.begin(key, outgoing, incoming, coding)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        if self.first.notes is not None:
            self.first.notes.append(Noted(self.number, key, {}, {}, x.new_empty(1).expand(x.numel())))
        return self.inner.all_reduce(key, x)

    def fork(self) -> "Recording":
        return Recording(self.inner.fork(), self.first)


class OrderChecking(_Wrapper):
    """Fails when a key is used twice, or when ranks did not post the same keys in the same order.

    A medium without tags matches messages by their order alone, and a clash of tags is harmless only where it agrees.
    Gradients of weights have a communicator, and so an order, of their own.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.seen: set[Key] = set()
        self.digests = [0, 0]  # of the weights' gradients, and of all else

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        self._note(key)
        return self.inner.begin(key, outgoing, incoming, coding)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        self._note(key)
        return self.inner.all_reduce(key, x)

    def fork(self) -> "OrderChecking":
        """Of its own order, which nobody compares: over a fork, ranks may talk in pairs."""
        return OrderChecking(self.inner.fork())

    def check(self) -> None:
        """Compare the order of keys over all ranks; every rank calls it."""
        digests = rank_table(self.inner, Key("order", len(self.seen)), self.digests, torch.int64)
        assert len(digests.unique(dim=0)) == 1, f"ranks posted other messages, or in another order: {digests.tolist()}"

    def _note(self, key: Key) -> None:
        assert key not in self.seen, f"rank {self.rank} used the key {key} twice"
        self.seen.add(key)
        which = int(key.use != "weights")
        self.digests[which] = zlib.crc32(str(key).encode(), self.digests[which])
