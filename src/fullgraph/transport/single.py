"""The transport of a run with one rank."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from fullgraph.transport.base import PLAIN, Coding, Pending, Ready
from fullgraph.transport.key import Key


class SingleRank:
    """A single rank: it sends nothing, and every sum is its input."""

    rank = 0
    size = 1

    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
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
