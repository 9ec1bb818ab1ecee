"""Features that stay in their table: rows are read in order, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.columns import BATCH_ROWS, Columns
from fullgraph.data.tables import feature_rows
from fullgraph.errors import InputError

BATCH_ENTRIES = 1 << 22


class TableRows:
    """x [N, F] for readers that take slices of rows from front to back; a slice further back starts again."""

    ndim = 2

    def __init__(self, table: Columns, columns: Sequence[str], num_nodes: int) -> None:
        self._table, self._columns = table, columns
        self.dtype: np.dtype[Any] = table.number_type(columns)
        self.shape = num_nodes, sum(table.width(column) for column in columns)
        self.refused = False  # whether a row was refused
        self._restart()

    def _restart(self) -> None:
        rows = max(1, min(BATCH_ROWS, BATCH_ENTRIES // max(1, self.shape[1])))
        self._blocks: Iterator[Array] = feature_rows(self._table, self._columns, rows)
        self._held, self._at = np.empty((0, self.shape[1]), self.dtype), 0  # the next rows, and the first one's number

    def __getitem__(self, rows: slice) -> Array:
        low, high, step = rows.indices(self.shape[0])
        assert step == 1
        if high <= low:
            return np.empty((0, self.shape[1]), self.dtype)
        if low < self._at:
            self._restart()
        try:
            return self._take(low, high)
        except InputError:
            self.refused = True
            raise

    def _take(self, low: int, high: int) -> Array:
        taken: list[Array] = []
        while self._at < high:
            if not len(self._held):
                self._held = self._next()
            count = min(high - self._at, len(self._held))
            if self._at + count > low:
                taken.append(self._held[max(0, low - self._at) : count])
            self._held, self._at = self._held[count:], self._at + count
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def _next(self) -> Array:
        block = next(self._blocks)
        good = np.isfinite(block)
        if not good.all():
            row = self._at + int(np.argwhere(~good)[0, 0])
            raise InputError(f"{self._table.at(row)} has NaN or infinity among its features: give it finite numbers")
        return block
