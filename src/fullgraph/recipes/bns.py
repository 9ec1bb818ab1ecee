"""BNS-GCN: a random share of the halo in every step (arXiv:2203.10983)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.exchange import Wire
from fullgraph.recipes.base import Published
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class BNS(Published):
    """Every halo node crosses in a step with probability `p`, the same nodes in all layers; sums stay right on average.

    A row that crosses counts 1/p times (not in attention, whose arcs from the others are left out); gradients come back
    for these rows alone. p=1 is vanilla, p=0 sends nothing.
    """

    p: Annotated[float, Range(0, 1)] = 0.1

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(share=self.p)
