"""How far late rows are from fresh ones, as a record tells it and as schedules follow it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fullgraph.codec import Shape
from fullgraph.codec.memory import ByPeer, are_shaped, rows_of

LOOK_EVERY = 20  # steps; each comparison waits for rows that would otherwise be read later


class Lateness:
    """The distance of late rows from fresh ones: |used - fresh|^2 and |fresh|^2 over all channels, in compared steps.

    Only rows before any dropout are compared, because each step has its own dropout masks.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @staticmethod
    def looks(step: int) -> bool:
        """Whether rows are compared in a step: one step before schedules with refresh 5, 10 or 20 read fresh rows."""
        return step % LOOK_EVERY == LOOK_EVERY - 2

    def add(self, used: Mapping[int, Tensor] | None, fresh: Mapping[int, Tensor]) -> None:
        """Add the difference of rows by peer. used: None if zeros were read."""
        for peer, rows in fresh.items():
            off = rows if used is None else rows - used[peer]
            sums = torch.stack([off.float().square().sum(), rows.float().square().sum()])
            self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> tuple[float, float]:
        """The sums since the last call."""
        sums, self._sums = self._sums, None
        if sums is None:
            return 0.0, 0.0
        off, all_ = sums.tolist()
        return off, all_


class Movement:
    """The rows that were sent last, to measure how far rows move from step to step; for schedules that follow it."""

    def __init__(self, lateness: Lateness) -> None:
        self.lateness = lateness
        self.rows: ByPeer = {}

    def see(self, packed: ByPeer, *, comparable: bool) -> None:
        """Measure the rows of a step. comparable: they differ from the last step's by training alone, not by dropout."""
        if self.rows and comparable:
            self.lateness.add(self.rows, packed)
        self.rows = packed if comparable else {}

    def held(self) -> dict[str, Tensor]:
        return {f"moved.{peer}": rows for peer, rows in self.rows.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.rows = rows_of(state, "moved.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return not self.rows or are_shaped(self.rows, sent, dtype)
