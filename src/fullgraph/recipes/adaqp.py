"""AdaQP: rows in 2, 4 or 8 bits, so that rounding adds little variance for the bytes (arXiv:2306.01381)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import MinVariance
from fullgraph.exchange import Wire
from fullgraph.recipes.base import Published
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class AdaQP(Published):
    """Halo features and gradients in 2, 4 or 8 bits by row, in step, chosen anew every `period` epochs.

    lam weighs variance (1) against bytes (0), as in the paper; budget: the bits a number that a message may take on
    average, 2 to 8, in place of lam.
    """

    lam: Annotated[float, Range(0, 1)] = 0.5
    budget: Annotated[float, Range(0, 8)] = 0.0
    period: Annotated[int, Range(1, 10**9)] = 50

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(codec=MinVariance(lam=self.lam, budget=self.budget, period=self.period))
