"""Which rows of a message cross at a step: a share of them drawn by chance, or every so many steps a turn of them.

Both ends know the global ids of a message's rows, and so which of them cross, without a message.

Legend: n rows of a message.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fullgraph.codec.memory import ByPeer
from fullgraph.ops.hashing import MASK32, draws, dropout_key, row_keys

SALT = 0xB5  # no layer of dropout has this number


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """Of one step's messages, by peer: the rows that cross, out and in; and of those that come in, the ones due."""

    sent: ByPeer
    come: ByPeer
    due: ByPeer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Picks:
    """At step t the rows with  id % turns == t % turns  are due, and of these each crosses with probability `share`.

    Its draw is a hash of (seed, t, id): one for all layers, both ways and all who read the row. A row that crosses
    counts 1 / share times, so that sums are right on average (BNS-GCN, arXiv:2203.10983); `summed` false: once. A row
    that is due and was not drawn is absent: zero in a sum.
    """

    share: float
    turns: int
    seed: int
    sent: ByPeer  # ids of the rows that each peer is sent
    come: ByPeer
    summed: bool = True

    @property
    def T(self) -> "Picks":
        """Of the gradients of these rows."""
        return replace(self, sent=self.come, come=self.sent)

    @property
    def scale(self) -> float:
        return 1 / self.share if self.share and self.summed else 1.0

    def at(self, step: int) -> Picked:
        sent, come = ({peer: self._drawn(ids, step) for peer, ids in way.items()} for way in (self.sent, self.come))
        return Picked(sent, come, {peer: self.due(ids, step) for peer, ids in self.come.items()})

    def due(self, ids_n: Tensor, step: int) -> Tensor:
        """The rows whose turn it is, in order."""
        return (ids_n % self.turns == step % self.turns).nonzero().flatten()

    def _drawn(self, ids_n: Tensor, step: int) -> Tensor:
        """Those of them that cross."""
        due = self.due(ids_n, step)
        if self.share == 1:
            return due
        a, b = row_keys(dropout_key(self.seed, step, SALT), ids_n[due])
        return due[draws(a, b, torch.zeros_like(a)) < round(self.share * (MASK32 + 1))]
