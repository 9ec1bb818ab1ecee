"""How far late rows are from those that would have been read in step.

Only rows that no dropout came before are compared: each step has masks of its own, by which others would differ.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

EVERY = 20  # steps; each look waits for rows that would otherwise be read later


class Lateness:
    """|used - fresh|^2 and |fresh|^2 over the rows of all channels, in the steps that look."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @staticmethod
    def looks(step: int) -> bool:
        """One step before those in which a schedule that refreshes every 5, 10 or 20 steps reads fresh rows."""
        return step % EVERY == EVERY - 2

    def add(self, used: Mapping[int, Tensor] | None, fresh: Mapping[int, Tensor]) -> None:
        """Rows by peer; None where zeros stood in for them."""
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
