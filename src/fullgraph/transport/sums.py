"""How ranks sum a tensor: they swap short tensors, and send shares of long ones around a ring.

In a swap every rank sends its tensor to all others and adds what it receives. All messages travel at the same time.
A ring needs 2 (n-1) messages one after another, and each may wait behind rows on the same link. With two ranks, a swap
sends no more bytes than a ring.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.transport.base import ByPeer, Pending, Transport
from fullgraph.transport.key import Key

SHORT = 64 << 10  # with three ranks or more, a rank sends at most this many bytes in a swap


class SumCost(NamedTuple):
    """The messages and bytes that a sum costs each rank."""

    in_a_row: int  # messages that must follow one another
    bytes: float  # sent


def swaps(nbytes: int, ranks: int) -> bool:
    """Return whether ranks swap a tensor of this size."""
    return ranks == 2 or (ranks - 1) * nbytes <= SHORT


def cost_of(nbytes: int, ranks: int) -> SumCost:
    """Return the cost of summing a tensor of this size."""
    if ranks == 1:
        return SumCost(0, 0)
    others = ranks - 1
    return SumCost(1, others * nbytes) if swaps(nbytes, ranks) else SumCost(2 * others, 2 * others * nbytes / ranks)


@torch.inference_mode()  # a transport thread adds tensors that another thread computed in any mode
def add_up(x: Tensor, rank: int, others: Mapping[int, Tensor]) -> Tensor:
    """x <- the sum of all ranks' tensors, in rank order: the same bits on every rank."""
    parts = {**others, rank: x.clone()}
    x.zero_()
    for peer in sorted(parts):
        x += parts[peer].view(x.dtype).view(x.shape).to(x.device)
    return x


class Swap:
    """A sum by swapping tensors, over any transport with messages."""

    def __init__(self, transport: Transport, key: Key, x: Tensor) -> None:
        wire = x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
        peers = [peer for peer in range(transport.size) if peer != transport.rank]
        self.pending: Pending[ByPeer] | None
        self.pending = transport.begin(key, dict.fromkeys(peers, wire), dict.fromkeys(peers, x.nbytes))
        self.rank, self.x = transport.rank, x

    def wait(self) -> Tensor:
        if self.pending is not None:
            add_up(self.x, self.rank, self.pending.wait())
            self.pending = None
        return self.x
