"""A schedule: fresh rows while a run is young, then those of the step before."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fullgraph.exchange import Turn
from fullgraph.values import Range, Value


@dataclass(frozen=True)
class FreshFirst(Value):
    """v(t) = t if t < first else t - 1."""

    depth: ClassVar[int] = 1  # the largest lag it ever reads
    first: Annotated[int, Range(1, 10**9)] = 10

    def turn(self, step):
        return Turn(send=True, read=step if step < self.first else step - 1)
