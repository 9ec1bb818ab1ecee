"""How ranks add up a tensor: they swap a short one, and pass shares of a long one round a ring.

In a swap every rank sends its own to all others and adds what comes. That is one message in a row, where a ring has
2 (n-1), each of which may queue behind rows on the same link. Two ranks send no more bytes so than in a ring.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.transport.base import Pending, Transport
from fullgraph.transport.key import Key

SHORT = 64 << 10  # bytes that a rank may send in a swap of three ranks or more


class SumCost(NamedTuple):
    """What a sum takes of a rank."""

    in_a_row: int  # messages, each of which waits for the one before
    bytes: float  # sent


def swaps(nbytes: int, ranks: int) -> bool:
    """Whether ranks swap a tensor of this size."""
    return ranks == 2 or (ranks - 1) * nbytes <= SHORT


def cost_of(nbytes: int, ranks: int) -> SumCost:
    """Of a tensor of this size."""
    if ranks == 1:
        return SumCost(0, 0)
    others = ranks - 1
    return SumCost(1, others * nbytes) if swaps(nbytes, ranks) else SumCost(2 * others, 2 * others * nbytes / ranks)


@torch.inference_mode()  # a thread of the transport's adds up what another one computed, in whatever mode
def add_up(x: Tensor, rank: int, others: Mapping[int, Tensor]) -> Tensor:
    """x <- the sum of this rank's x and the others', in the order of ranks: the same bits everywhere."""
    parts = {**others, rank: x.clone()}
    x.zero_()
    for peer in sorted(parts):
        x += parts[peer].view(x.dtype).view(x.shape).to(x.device)
    return x


class Swap:
    """A sum by a swap, over any transport that has messages."""

    def __init__(self, transport: Transport, key: Key, x: Tensor) -> None:
        wire = x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
        peers = [peer for peer in range(transport.size) if peer != transport.rank]
        self.coming: Pending[dict[int, Tensor]] | None
        self.coming = transport.begin(key, dict.fromkeys(peers, wire), dict.fromkeys(peers, x.nbytes))
        self.rank, self.x = transport.rank, x

    def wait(self) -> Tensor:
        if self.coming is not None:
            add_up(self.x, self.rank, self.coming.wait())
            self.coming = None
        return self.x
