"""`steady`: few bits, late rows only while they are measured to be safe, and an exact end. Ours, of no paper."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import LowBit
from fullgraph.exchange import Steady, Wire
from fullgraph.recipes.base import Published
from fullgraph.values import Range


@dataclass(frozen=True, kw_only=True)
class SteadyHalos(Published):
    """Halo features and gradients of `bits` per number, fresh, or one step late while rows hardly move.

    drift: the largest movement in one step, relative to how far rows lie from their mean, after which the next step
    reads late rows; each epoch's record has the measured one. exact_from: as everywhere, but 0.95 by default.
    """

    bits: int = 4
    drift: Annotated[float, Range(0, 1e9)] = 0.005
    exact_from: Annotated[float, Range(0, 1)] = 0.95

    def sending(self, *, epochs: int, layers: int) -> Wire:
        return Wire(schedule=Steady(self.drift), codec=LowBit(self.bits))
