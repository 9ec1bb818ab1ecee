"""SANCUS: a rank sends a layer's rows only when they have changed enough (VLDB 2022, doi:10.14778/3538598.3538614)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.exchange import Drift, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class Sancus(Published):
    """A rank's rows of a layer are not sent while they changed by less than `bound` since they last were.

    Readers use those that were sent last. longest: steps on end that may be skipped (0: any number). Gradients come
    back in every step; with `gradients` they are skipped alike.
    """

    bound: Annotated[float, Range(0, 1e9)] = 0.3
    longest: Annotated[int, Range(0, 10**9)] = 10
    gradients: bool = False

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(drift=Drift(bound=self.bound, longest=self.longest, gradients=self.gradients))
