"""What a placement tells a wire of the rows that cross.

Legend: n owned rows, h halo rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.codec.memory import ByPeer, BySide
from fullgraph.plan import Route
from fullgraph.transport import Key, Transport


class Sides(NamedTuple):
    """A number of every owned row [n], and of every halo row [h]."""

    owned: Tensor
    halo: Tensor

    def by_peer(self, route: Route) -> tuple[ByPeer, ByPeer]:
        """By message, on the host: of the rows that each peer is sent, and of those that it sends."""
        packed = route.pack(self.owned), route.T.pack(self.halo)
        sent, come = ({peer: rows.cpu() for peer, rows in way.items()} for way in packed)
        return sent, come


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowFacts:
    """All that a wire may ask about rows; a placement leaves out what its wires cannot use."""

    ids: Sides | None = None  # global
    grades: Sides | None = None  # how much rows matter, 0..3, for wires that are `graded`
    squares: Callable[[], Tensor] | None = None  # [h]: the sum of the squares of what readers multiply a row by
    summed: bool | None = True  # readers sum rows up, each times a number; attention does not; None: who knows


@dataclass(frozen=True, slots=True, eq=False)
class FactsByMessage:
    """The facts of one direction of a channel, by message; None: the placement does not tell them."""

    rows: RowFacts
    route: Route  # of the features
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
        """Readers know them, and tell the owners; all ranks must ask."""
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
