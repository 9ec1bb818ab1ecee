"""Ranks as groups: one rank alone, some of the ranks with new numbers, and the axes of a grid of ranks."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod

from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.transport.base import PLAIN, ByPeer, Coding, Pending, Ready, Sizes, Transport
from fullgraph.transport.key import Key
from fullgraph.transport.sums import Swap


class SingleRank:
    """A single rank: it sends nothing, and every sum is its input."""

    rank = 0
    size = 1

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
        assert (outgoing, incoming) == ({}, {}), f"one rank has no peers, yet {key} names some"
        return Ready({})

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        return Ready(x)

    def fork(self) -> "SingleRank":
        return self

    def away(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


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
    def __init__(self, pending: Pending[ByPeer], coding: _Renumbered) -> None:
        self.pending, self.coding = pending, coding

    def wait(self) -> ByPeer:
        return {self.coding.number[peer]: rows for peer, rows in self.pending.wait().items()}


class SubTransport:
    """A transport over the given ranks of `inner`, which must include this rank."""

    def __init__(self, inner: Transport, ranks: Sequence[int]) -> None:
        self.inner, self.ranks = inner, tuple(ranks)
        self.rank, self.size = self.ranks.index(inner.rank), len(self.ranks)

    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
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


class Mesh:
    """Numbers the cells of a grid, the last axis fastest:  Mesh(stage=4, way=2)  puts rank 5 at stage 2, way 1."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    @classmethod
    def of(cls, ranks: int, *, ways: int, stages: int) -> "Mesh":
        """Arrange ranks by stage and way. 0 means: computed from the other."""
        given = {"ways": ways, "stages": stages}
        for name, size in given.items():
            if size < 0 or (size and ranks % size):
                good = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
                raise InputError(f"{name}={size} does not divide {ranks} ranks; choose {name} from {good}")
        if not ways and not stages:
            raise InputError("a mesh needs ways or stages; give one of them")
        mesh = cls(stage=stages or ranks // ways, way=ways or ranks // stages)
        if len(mesh) != ranks:
            raise InputError(f"ways={ways} x stages={stages} are not {ranks} ranks; give one of them")
        return mesh

    def at(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank, by axis."""
        place = {}
        for axis, size in reversed(self.sizes.items()):
            rank, place[axis] = divmod(rank, size)
        return place

    def rank(self, **place: int) -> int:
        number = 0
        for axis, size in self.sizes.items():
            number = number * size + place[axis]
        return number

    def along(self, axis: str, rank: int) -> Sequence[int]:
        """Return the ranks that share all coordinates with this rank except on `axis`, including the rank itself."""
        place = self.at(rank)
        return [self.rank(**{**place, axis: index}) for index in range(self.sizes[axis])]

    def __len__(self) -> int:
        return prod(self.sizes.values())
