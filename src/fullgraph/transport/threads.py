"""Simulated ranks: threads of one process that pass messages through a shared hub. For tests."""

import threading
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from fullgraph.errors import PeerLost
from fullgraph.transport.base import PLAIN, ByPeer, Coding, Pending, Sizes
from fullgraph.transport.key import Key
from fullgraph.transport.sums import Swap


class Hub:
    """The mailbox of simulated ranks."""

    def __init__(self, size: int, timeout: float | None = 60.0) -> None:
        """timeout: seconds that a rank waits for a message. None: until all ranks wait or have ended."""
        self.size, self.timeout = size, timeout
        self._mail: dict[Hashable, list[Tensor]] = {}
        self._change = threading.Condition()
        self._failed: str | None = None
        self._waiting: dict[tuple[int, int], tuple[Hashable, str]] = {}  # (rank, thread) -> (address, text of an error)
        self._ended: set[int] = set()

    def ranks(self) -> list["ThreadTransport"]:
        return [ThreadTransport(self, rank) for rank in range(self.size)]

    def put(self, address: Hashable, value: Tensor) -> None:
        with self._change:
            self._mail.setdefault(address, []).append(value)
            self._change.notify_all()

    def take(self, rank: int, address: Hashable, text: str) -> Tensor:
        waiter = rank, threading.get_ident()  # a rank has two threads while it writes a checkpoint
        with self._change:
            self._waiting[waiter] = address, text
            self._stop_stuck()
            self._change.wait_for(lambda: self._failed or self._mail.get(address), self.timeout)
            del self._waiting[waiter]
            if self._mail.get(address):
                value = self._mail[address].pop(0)
                if not self._mail[address]:
                    del self._mail[address]
                return value
        raise PeerLost(f"{text}; {self._failed or f'nothing came for {self.timeout:g} s'}")

    def end(self, rank: int) -> None:
        """Record that a rank has done all its work."""
        with self._change:
            self._ended.add(rank)
            self._stop_stuck()

    def _stop_stuck(self) -> None:
        """Without a timeout, fail as soon as all ranks wait for one another."""
        waiting = {rank for rank, _ in self._waiting}
        waits = self.timeout is None and waiting and len(waiting) + len(self._ended) == self.size
        if waits and not any(self._mail.get(address) for address, _ in self._waiting.values()):
            self.fail(self.waits())

    def waits(self) -> str:
        """Return which messages ranks wait for, and which ranks have ended."""
        with self._change:
            return "; ".join([*(text for _, text in self._waiting.values()), *(f"rank {r} ended" for r in self._ended)])

    def fail(self, text: str) -> None:
        """Wake every waiting rank, because one rank is gone."""
        with self._change:
            self._failed = self._failed or text
            self._change.notify_all()


class _Mail:
    """Messages of one key from several peers."""

    def __init__(
        self, transport: "ThreadTransport", key: Key, incoming: dict[int, int], coding: Coding = PLAIN
    ) -> None:
        self.transport, self.key, self.incoming, self.coding = transport, key, incoming, coding
        self.rows: ByPeer | None = None
        self._taking = threading.Lock()  # a step and the writer of a checkpoint may wait for the same rows

    def wait(self) -> ByPeer:
        with self._taking:
            self.rows = self._take() if self.rows is None else self.rows
            return self.rows

    def _take(self) -> ByPeer:
        hub, rank, rows = self.transport.hub, self.transport.rank, {}
        for peer, nbytes in self.incoming.items():
            wire = hub.take(rank, (peer, rank, self.key), f"rank {rank} waited for {self.key} from rank {peer}")
            assert wire.numel() == nbytes, f"{self.key}: rank {peer} sent {wire.numel()} bytes, expected {nbytes}"
            rows[peer] = self.coding.decode(peer, wire)
        return rows


class ThreadTransport:
    """One simulated rank."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size = hub, rank, hub.size

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
        for peer, rows in outgoing.items():
            self.hub.put((self.rank, peer, key), coding.encode(peer, rows).clone())
        return _Mail(self, key, incoming, coding)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        return Swap(self, key, x)

    def fork(self) -> "ThreadTransport":
        return self  # a receiver waits only when it reads

    def away(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass
