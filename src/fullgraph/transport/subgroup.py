"""A transport over some of the ranks, with new numbers: one axis of a mesh."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from fullgraph.transport.base import PLAIN, Coding, Pending, Transport
from fullgraph.transport.key import Key
from fullgraph.transport.sums import Swap


class _Renumbered:
    """A coding that takes peer numbers within the subgroup."""

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


class SubTransport:
    """A transport over the given ranks of `inner`, which must include this rank."""

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
        return Swap(self, key, x)

    def fork(self) -> "SubTransport":
        return SubTransport(self.inner.fork(), self.ranks)

    def away(self, text: str) -> AbstractContextManager[None]:
        return self.inner.away(text)

    def close(self) -> None:
        pass
