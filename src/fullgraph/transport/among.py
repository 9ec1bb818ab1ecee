"""Some of the ranks, numbered anew: one axis of a mesh."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fullgraph.transport.base import PLAIN, Coding, Pending, Transport
from fullgraph.transport.key import Key


class _Renumbered:
    """A coding that knows peers by their number among the chosen."""

    def __init__(self, coding: Coding, ranks: Sequence[int]) -> None:
        self.coding, self.number = coding, {rank: number for number, rank in enumerate(ranks)}

    def nbytes(self, peer: int, rows: Tensor) -> int:
        return self.coding.nbytes(self.number[peer], rows)

    def encode(self, peer: int, rows: Tensor) -> Tensor:
        return self.coding.encode(self.number[peer], rows)

    def decode(self, peer: int, wire: Tensor) -> Tensor:
        return self.coding.decode(self.number[peer], wire)


class _Received:
    def __init__(self, pending: Pending[dict[int, Tensor]], coding: _Renumbered) -> None:
        self.pending, self.coding = pending, coding

    def wait(self) -> dict[int, Tensor]:
        return {self.coding.number[peer]: rows for peer, rows in self.pending.wait().items()}


class _Sum:
    """Everyone's x, added in order so that all get the same."""

    def __init__(self, pending: Pending[dict[int, Tensor]], rank: int, x: Tensor) -> None:
        self.pending, self.rank, self.x, self.done = pending, rank, x, False

    def wait(self) -> Tensor:
        if not self.done:
            parts = {peer: wire.view(self.x.dtype).view(self.x.shape) for peer, wire in self.pending.wait().items()}
            parts[self.rank] = self.x.clone()
            self.x.zero_()
            for _, part in sorted(parts.items()):
                self.x += part.to(self.x.device)
            self.done = True
        return self.x


class Among:
    """The given ranks of a transport, which must hold this one."""

    def __init__(self, inner: Transport, ranks: Sequence[int]) -> None:
        self.inner, self.ranks = inner, tuple(ranks)
        self.rank, self.size = self.ranks.index(inner.rank), len(self.ranks)

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        renumbered = _Renumbered(coding, self.ranks)
        sent = {self.ranks[peer]: rows for peer, rows in outgoing.items()}
        expected = {self.ranks[peer]: nbytes for peer, nbytes in incoming.items()}
        return _Received(self.inner.begin(key, sent, expected, renumbered), renumbered)

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        wire = x.clone().view(-1).view(torch.uint8)
        peers = [peer for peer in range(self.size) if peer != self.rank]
        pending = self.begin(key, dict.fromkeys(peers, wire), dict.fromkeys(peers, x.nbytes))
        return _Sum(pending, self.rank, x)

    def fork(self) -> "Among":
        return Among(self.inner.fork(), self.ranks)

    def away(self, text: str) -> AbstractContextManager[None]:
        return self.inner.away(text)

    def close(self) -> None:
        pass
