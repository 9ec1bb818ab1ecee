"""Transports around another transport: they count, record, delay or check messages."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fullgraph.transport.base import PLAIN, ByPeer, Coding, Pending, Sizes, Transport
from fullgraph.transport.gather import rank_table
from fullgraph.transport.key import Key
from fullgraph.transport.sums import cost_of

T = TypeVar("T")


class _Wrapper(ABC):
    """Forwards every call."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.rank, self.size = inner.rank, inner.size

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
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


Waiting = Callable[[Key], AbstractContextManager[None]]  # returns a context that encloses a wait


def _uncounted(key: Key) -> AbstractContextManager[None]:
    return nullcontext()


class Probe(Protocol):
    """Receives every message and the work it takes; a meter is a probe."""

    def message(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding) -> Coding:
        """Record that a message is posted now; return its coding, or one that also records its work."""
        ...

    def span(self, kind: str, key: Key, peers: tuple[int, ...] = ()) -> AbstractContextManager[None]:
        """Enclose a piece of work for a message with these peers."""
        ...


class Counting(_Wrapper):
    """Reports the bytes that this rank sends, and encloses every wait; `sent` and `waiting` receive the message's key.

    For a sum it reports an equal share of all ranks' bytes (`cost_of`), which may be a fraction.
    probe: also receives every message, and the time to encode and decode its rows.
    """

    def __init__(
        self, inner: Transport, sent: Callable[[Key, float], None], waiting: Waiting = _uncounted,
        probe: Probe | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self.sent, self.waiting, self.probe = sent, waiting, probe

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
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
    """The sizes of one message or sum."""

    fork: int  # 0: the transport itself; k: its k-th fork
    key: Key
    outgoing: dict[int, int]  # bytes by peer
    incoming: dict[int, int]
    summed: Tensor | None = None  # for a sum: a tensor without data, of the same length and type

    @property
    def nbytes(self) -> int:
        return sum(self.outgoing.values()) + (0 if self.summed is None else self.summed.nbytes)


class Recording(_Wrapper):
    """Appends the sizes of all messages to `notes`, in order, while `notes` is a list.

    `links` holds the inner transport and its forks; `Noted.fork` is the index.
    """

    def __init__(self, inner: Transport, first: "Recording | None" = None) -> None:
        super().__init__(inner)
        self.first = first or self
        self.notes: list[Noted] | None = None
        self.links: list[Transport] = first.links if first else []
        self.number = len(self.links)
        self.links.append(inner)

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
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
    """Fails if a key is used twice, or if ranks post different keys or post them in a different order.

    A backend without tags matches messages by order alone, and equal tags are harmless only if the order is the same.
    The gradient all-reduce has a separate communicator and therefore a separate order.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.seen: set[Key] = set()
        self.digests = [0, 0]  # for the gradient all-reduce, and for all other messages

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
        self._note(key)
        return self.inner.begin(key, outgoing, incoming, coding)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        self._note(key)
        return self.inner.all_reduce(key, x)

    def fork(self) -> "OrderChecking":
        """Fork without comparing the fork's order: over a fork, ranks may communicate in pairs."""
        return OrderChecking(self.inner.fork())

    def check(self) -> None:
        """Compare the order of keys over all ranks; every rank must call this."""
        digests = rank_table(self.inner, Key("order", len(self.seen)), self.digests, torch.int64)
        assert len(digests.unique(dim=0)) == 1, f"ranks posted other messages, or in another order: {digests.tolist()}"

    def _note(self, key: Key) -> None:
        assert key not in self.seen, f"rank {self.rank} used the key {key} twice"
        self.seen.add(key)
        which = int(key.use != "weights")
        self.digests[which] = zlib.crc32(str(key).encode(), self.digests[which])
