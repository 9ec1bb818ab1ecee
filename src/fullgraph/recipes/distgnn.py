"""DistGNN's cd-r: halos refreshed in turns, and read with a delay (arXiv:2104.06700)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.exchange import Pipelined, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class DelayedTurns(Published):
    """In each step one of `r` parts of the halo is sent, rows and gradients, and read r steps later; others stay."""

    r: Annotated[int, Range(1, 10**9)] = 5

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(schedule=Pipelined(self.r), turns=self.r)
