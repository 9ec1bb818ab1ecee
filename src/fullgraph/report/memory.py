"""The memory plan of a rank: what its rows, edges and weights take, where each of them lives, and in how many parts a
layer is computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fullgraph.values import Range, Value
from fullgraph.words import count, size

Count = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class MemoryLine(Value):
    """One row of a memory plan."""

    what: str
    rows: Count = 0
    columns: Count = 0
    nbytes: Count
    lives: str  # memory, or disk


@dataclass(frozen=True, kw_only=True)
class MemoryPlan(Value):
    """Where a rank's rows live. parts: how many parts a layer is computed in; 0: it is computed at once, in memory.

    whole: the memory of the run if everything is in memory. peak: the most that it takes as planned. held: how many
    stores are in memory, counted from the first.
    """

    budget: Count
    whole: Count
    parts: Count = 0
    peak: Count
    disk: Count = 0
    held: Count = 0
    reads: float = 1.0  # rows that all parts read, as a multiple of the rows
    lines: tuple[MemoryLine, ...] = ()

    @property
    def streams(self) -> bool:
        return self.parts > 0

    def __str__(self) -> str:
        if not self.streams:
            return f"memory: {size(self.whole)} of {size(self.budget)}, all in memory"
        return (
            f"memory: the run takes {size(self.whole)} in memory, more than {size(self.budget)}; layers are computed "
            f"in {count(self.parts, 'part')}, with {size(self.peak)} of memory and {size(self.disk)} of disk"
        )

    def table(self) -> Iterator[str]:
        """The plan as lines of text."""
        yield str(self)
        yield f"{'content':<38} {'rows':>14} {'columns':>8} {'bytes':>9}  lives in"
        for line in self.lines:
            rows, columns = (f"{number:,}" if number else "" for number in (line.rows, line.columns))
            yield f"{line.what:<38} {rows:>14} {columns:>8} {size(line.nbytes):>9}  {line.lives}"
