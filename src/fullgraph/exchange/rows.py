"""The facts about crossing rows that a placement gives to a wire, and the selection of rows that cross in a step.

A random share of the rows crosses, or a fixed part of them in turn. Both ends know the global ids of a message's rows,
so they select the same rows without communication.

Legend: n owned rows, or rows of a message; h halo rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.codec.memory import ByPeer, BySide
from fullgraph.ops.hashing import MASK32, draws, dropout_key, row_keys
from fullgraph.plan import Route
from fullgraph.transport import Key, Transport

SALT = 0xB5  # no dropout layer has this number


class Sides(NamedTuple):
    """One number per owned row [n] and per halo row [h]."""

    owned: Tensor
    halo: Tensor

    def by_peer(self, route: Route) -> tuple[ByPeer, ByPeer]:
        """By peer, on the host: the values of the rows sent to it, and the values of the rows received from it."""
        packed = route.pack(self.owned), route.T.pack(self.halo)
        sent, come = ({peer: rows.cpu() for peer, rows in way.items()} for way in packed)
        return sent, come


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowFacts:
    """The facts about rows that wires may use; a placement leaves out those that its wires cannot use."""

    route: Route | None = None  # by which these facts go to readers; None: as the rows do
    ids: Sides | None = None  # global ids
    grades: Sides | None = None  # importance of rows, 0..3, for wires that are `graded`
    squares: Callable[[], Tensor] | None = None  # [h]: the sum of the squared weights by which readers multiply a row
    summed: bool | None = True  # readers compute weighted sums of rows; attention does not; None: unknown


@dataclass(frozen=True, slots=True, eq=False)
class FactsByMessage:
    """The facts of one direction of a channel, by message; None if the placement does not have them."""

    rows: RowFacts
    route: Route  # the route of the features
    transport: Transport
    name: str
    gradients: bool

    @property
    def ids(self) -> BySide | None:
        return self._sides(self.rows.ids)

    @property
    def grades(self) -> BySide | None:
        return self._sides(self.rows.grades)

    @property
    def squares(self) -> BySide | None:
        """Readers send them to the owners; all ranks must call this."""
        if self.gradients or self.rows.squares is None:
            return None
        come = {peer: rows.float().cpu() for peer, rows in self.route.T.pack(self.rows.squares()).items()}
        incoming = {peer: 4 * shape[0] for peer, shape in self.route.T.shapes(()).items()}
        wires = {peer: rows.contiguous().view(torch.uint8) for peer, rows in come.items()}
        told = self.transport.begin(Key(f"setup/{self.name} squares", 0), wires, incoming).wait()
        return {"sent": {peer: told[peer].cpu().clone().view(torch.float32) for peer in sorted(told)}, "come": come}

    def _sides(self, sides: Sides | None) -> BySide | None:
        if sides is None:
            return None
        sent, come = sides.by_peer(self.route)
        return {"sent": come, "come": sent} if self.gradients else {"sent": sent, "come": come}


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """The rows of one step's messages, by peer: those sent, those received, and those due."""

    sent: ByPeer
    come: ByPeer
    due: ByPeer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Picks:
    """At step t the rows with  id % turns == t % turns  are due, and each due row crosses with probability `share`.

    The draw is a hash of (seed, t, id): equal for all layers, both directions and all readers of the row. A row that
    crosses counts 1 / share times, so that sums are unbiased (BNS-GCN, arXiv:2203.10983); once if `summed` is false. A
    row that is due and was not drawn is absent: zero in a sum. If channels began without earlier rows at a step after
    0, all rows are due at that step, `began`.
    """

    share: float
    turns: int
    seed: int
    sent: ByPeer  # ids of the rows that are sent to each peer
    come: ByPeer
    summed: bool = True
    began: int = 0

    @property
    def T(self) -> "Picks":
        """The picks of these rows' gradients."""
        return replace(self, sent=self.come, come=self.sent)

    @property
    def scale(self) -> float:
        return 1 / self.share if self.share and self.summed else 1.0

    def at(self, step: int) -> Picked:
        sent, come = ({peer: self._drawn(ids, step) for peer, ids in way.items()} for way in (self.sent, self.come))
        return Picked(sent, come, {peer: self.due(ids, step) for peer, ids in self.come.items()})

    def due(self, ids_n: Tensor, step: int) -> Tensor:
        """The rows that are due at a step, in order."""
        if step == self.began > 0:
            return torch.arange(len(ids_n), device=ids_n.device)
        return (ids_n % self.turns == step % self.turns).nonzero().flatten()

    def _drawn(self, ids_n: Tensor, step: int) -> Tensor:
        """The due rows that cross."""
        due = self.due(ids_n, step)
        if self.share == 1:
            return due
        a, b = row_keys(dropout_key(self.seed, step, SALT), ids_n[due])
        return due[draws(a, b, torch.zeros_like(a)) < round(self.share * (MASK32 + 1))]
