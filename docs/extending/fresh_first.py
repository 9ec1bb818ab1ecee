"""A schedule: fresh rows in the first steps of a run, later the rows of the previous step."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fullgraph.exchange import Turn
from fullgraph.values import Range, Value


@dataclass(frozen=True)
class FreshFirst(Value):
    """v(t) = t if t < first else t - 1."""

    depth: ClassVar[int] = 1  # the largest lag
    first: Annotated[int, Range(1, 10**9)] = 10

    def turn(self, step):
        return Turn(send=True, read=step if step < self.first else step - 1)
