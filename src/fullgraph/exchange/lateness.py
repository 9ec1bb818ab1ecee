"""How far late rows are from fresh ones, as a record tells it and as schedules follow it."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fullgraph.codec import Shape
from fullgraph.codec.memory import ByPeer, are_shaped, rows_of

LOOK_EVERY = 20  # steps; each comparison waits for rows that would otherwise be read later


def relative(off: float, whole: float) -> float | None:
    """The root of a ratio of two sums of squares; None if it is undefined."""
    return math.sqrt(off / whole) if whole and math.isfinite(off / whole) else None


class Ratio:
    """Two sums of squares over all channels, since they were last taken."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def add(self, off: Tensor, whole: Tensor) -> None:
        sums = torch.stack([off.float().square().sum(), whole.float().square().sum()])
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> tuple[float, float]:
        """The sums since the last call."""
        sums, self._sums = self._sums, None
        if sums is None:
            return 0.0, 0.0
        off, whole = sums.tolist()
        return off, whole


class Lateness(Ratio):
    """The distance of late rows from fresh ones: |used - fresh|^2 and |fresh|^2, in compared steps.

    Only rows before any dropout are compared, because each step has its own dropout masks.
    """

    @staticmethod
    def looks(step: int) -> bool:
        """Whether rows are compared in a step: one step before schedules with refresh 5, 10 or 20 read fresh rows."""
        return step % LOOK_EVERY == LOOK_EVERY - 2

    def compare(self, used: Mapping[int, Tensor] | None, fresh: Mapping[int, Tensor]) -> None:
        """Add the difference of rows by peer. used: None if zeros were read."""
        for peer, rows in fresh.items():
            self.add(rows if used is None else rows - used[peer], rows)


class Movement:
    """The rows of a message that were sent last, and how far the next ones are from them.

    |x(t) - x(t-1)|^2 and |x(t) - m(t)|^2, where m is the mean row of the message: rows that are nearly alike, as in a
    model that has not learned yet, differ by little, and less than that is much for them.
    """

    def __init__(self, ratio: Ratio) -> None:
        self.ratio = ratio
        self.rows: ByPeer = {}

    def see(self, packed: ByPeer, *, comparable: bool) -> None:
        """Measure the rows of a step. comparable: no dropout changed them, which would differ in each step."""
        if self.rows and comparable:
            for peer, rows in packed.items():
                now = rows.float()
                self.ratio.add(now - self.rows[peer].float(), now - now.mean(0))
        self.rows = packed if comparable else {}

    def held(self) -> dict[str, Tensor]:
        return {f"moved.{peer}": rows for peer, rows in self.rows.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.rows = rows_of(state, "moved.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return not self.rows or are_shaped(self.rows, sent, dtype)
