"""Runs: a few million arcs each, sorted by target. A piece of the table of edges becomes one step of runs.

    starts.bin  int64 [B+1]   the first arc of each block of 65536 targets      low.bin    uint16 [e]   target % 65536
    source.bin  int32 [e]                                                       value.bin  [e, K]       weight, features

Six bytes per arc without values. Legend: N nodes, B = N / 65536 blocks, e arcs of a run, K numbers per arc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.columns import Columns
from fullgraph.data.streamed.ids import Ids
from fullgraph.data.streamed.scratch import mapped
from fullgraph.data.tables import EdgeColumns
from fullgraph.errors import InputError

RUN_ARCS = 1 << 22
BLOCK_BITS = 16
FORWARD, REVERSE = "forward", "reverse"  # names of runs; the second only in undirected graphs


def write_runs(folder: Path, piece: Columns, columns: EdgeColumns, ids: Ids, nodes: str, *, undirected: bool) -> None:
    """Write the arcs of a piece of the table of edges as runs into a new folder."""
    for number, (edges, values) in enumerate(_gathered(piece, columns, ids, nodes)):
        for name, (source, target) in ((FORWARD, edges), *(((REVERSE, edges[::-1]),) if undirected else ())):
            _write_run(folder / f"{name}-{number:05}", source, target, values, len(ids))


def _gathered(piece: Columns, columns: EdgeColumns, ids: Ids, nodes: str) -> Iterator[tuple[Array, Array]]:
    """Yield arcs [2, e] and values [e, K], enough for a run each time."""
    held: list[tuple[Array, Array]] = []
    row = count = 0
    for batch in piece.batches(columns.kinds):
        arcs, values = columns.block(batch, piece, row, (ids.find, ids.find), (nodes, nodes))
        if not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0, 0])
            raise InputError(f"{piece.at(row + bad)} has NaN or infinity as a number: give it a finite one")
        held.append((arcs, values))
        row, count = row + len(batch), count + len(batch)
        if count >= RUN_ARCS:
            yield _joined(held)
            held, count = [], 0
    if held:
        yield _joined(held)


def _joined(held: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([arcs for arcs, _ in held], axis=1), np.concatenate([values for _, values in held])


def _write_run(folder: Path, source: Array, target: Array, values: Array, num_nodes: int) -> None:
    folder.mkdir()
    keys, values = ordered((target.astype(np.uint64) << np.uint64(32)) | source.astype(np.uint64), values)
    target = (keys >> np.uint64(32)).astype(np.int32)
    blocks = np.bincount(target >> BLOCK_BITS, minlength=num_blocks(num_nodes))
    np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64).tofile(folder / "starts.bin")
    (target & ((1 << BLOCK_BITS) - 1)).astype(np.uint16).tofile(folder / "low.bin")
    keys.astype(np.uint32).tofile(folder / "source.bin")
    if values.shape[1]:
        values.tofile(folder / "value.bin")


def ordered(keys: Array, values: Array) -> tuple[Array, Array]:
    """Sort keys, and the values with them; values of equal keys keep their order."""
    if not values.shape[1]:
        keys.sort()
        return keys, values[: len(keys)]
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def num_blocks(num_nodes: int) -> int:
    return (num_nodes >> BLOCK_BITS) + 1


@dataclass(frozen=True, eq=False)
class Run:
    """A run, of which slices are read."""

    folder: Path
    starts: Array

    @classmethod
    def open(cls, folder: Path) -> Run:
        return cls(folder, np.fromfile(folder / "starts.bin", np.int64))

    def position(self, target: int) -> int:
        """Return the number of arcs into targets below `target`."""
        block = target >> BLOCK_BITS
        low, high = (int(at) for at in self.starts[block : block + 2])
        rest = target & ((1 << BLOCK_BITS) - 1)
        return low + int(np.searchsorted(self._read("low.bin", np.uint16, low, high), rest)) if rest else low

    def degrees(self, block: int) -> Array:
        """Return the number of arcs into each target of a block."""
        low = self._read("low.bin", np.uint16, *self.starts[block : block + 2].tolist())
        return np.bincount(low, minlength=1 << BLOCK_BITS)

    def keys(self, low: int, high: int, first: int) -> Array:
        """Return (target - first) << 32 | source of some arcs."""
        arcs = np.arange(len(self.starts) - 1, dtype=np.int64) << BLOCK_BITS
        block = np.repeat(arcs, np.diff(np.clip(self.starts, low, high)))
        target = block + self._read("low.bin", np.uint16, low, high) - first
        source = self._read("source.bin", np.uint32, low, high)
        return (target.astype(np.uint64) << np.uint64(32)) | source

    def values(self, low: int, high: int, dtype: np.dtype[np.generic], width: int) -> Array:
        return mapped(self.folder / "value.bin", dtype, width)[low:high]

    def _read(self, name: str, dtype: type, low: int, high: int) -> Array:
        size = np.dtype(dtype).itemsize
        return np.fromfile(self.folder / name, dtype, count=high - low, offset=low * size)
