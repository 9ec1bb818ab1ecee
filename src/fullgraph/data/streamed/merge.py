"""All runs as one list of arcs, sorted by target and source, and the first arc of each row.

A block of consecutive targets is merged in memory. Its arcs are written at their place in the whole list, and the
degrees of its targets into the block's own step: a block with degrees is finished.

Legend: N nodes, E arcs, K numbers per arc.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, Tally, at_once
from fullgraph.data.streamed.runs import BLOCK_BITS, Run, num_blocks, ordered
from fullgraph.data.streamed.scratch import Scratch, mapped

MERGED_ARCS = 1 << 22

Kind = np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Arcs:
    """Rows by target, as `Graph` has them; the arrays of arcs are memory-mapped."""

    indptr: Array  # int64 [N+1]
    indices: Array  # int32 [E]
    values: Array  # [E, K]


def merged(
    scratch: Scratch, runs: Sequence[Run], num_nodes: int, dtype: Kind, width: int, progress: Callable[[int, int], None]
) -> Arcs:
    """Merge runs; equal arcs keep the order of the runs. progress: called with (done, total), in arcs."""
    folder = scratch.step("arcs", lambda building: (building / "source.bin").touch())
    bounds = _bounds(runs, num_nodes)
    before = np.array([[run.position(bound) for run in runs] for bound in bounds], np.int64).reshape(len(bounds), -1)
    first = before.sum(axis=1)
    tally = Tally(progress, int(first[-1]))

    def merge(block: int) -> Array:
        step = scratch.step(f"block-{block:05}", lambda building: write(building, block))
        tally.more(int(first[block + 1] - first[block]))
        return np.fromfile(step / "degree.bin", np.int64)

    def write(building: Path, block: int) -> None:
        low, high = bounds[block : block + 2]
        ends = list(zip(runs, before[block].tolist(), before[block + 1].tolist(), strict=True))
        taken = [(run, a, b) for run, a, b in ends if b > a]
        keys = np.concatenate([np.empty(0, np.uint64), *(run.keys(a, b, low) for run, a, b in taken)])
        parts = [run.values(a, b, dtype, width) for run, a, b in taken] if width else []
        values = np.concatenate([np.empty((0 if width else len(keys), width), dtype), *parts])
        keys, values = ordered(keys, values)
        _write_at(folder / "source.bin", int(first[block]) * 4, keys.astype(np.uint32))
        if width:
            _write_at(folder / "value.bin", int(first[block]) * width * dtype.itemsize, values)
        np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=high - low).tofile(building / "degree.bin")

    degrees = list(at_once(merge, range(len(bounds) - 1)))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.concatenate(degrees), out=indptr[1:])
    indices = mapped(folder / "source.bin", np.int32)
    values = np.empty((len(indices), 0), dtype)
    if width:
        values = mapped(folder / "value.bin", dtype, width) if len(indices) else np.empty((0, width), dtype)
    return Arcs(indptr, indices, values)


def _write_at(path: Path, offset: int, array: Array) -> None:
    """Write an array into a file and sync it. A mapped file would end the process if the disk is full."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        written = 0
        while written < len(data):
            written += os.pwrite(handle, data[written:], offset + written)
        os.fsync(handle)
    finally:
        os.close(handle)


def _bounds(runs: Sequence[Run], num_nodes: int) -> list[int]:
    """Split the targets into blocks of at most a few million arcs, or of a single target."""
    counts = sum((np.diff(run.starts) for run in runs), np.zeros(num_blocks(num_nodes), np.int64))
    bounds, room = [0], MERGED_ARCS
    for block, count in enumerate(counts.tolist()):
        if count <= room:
            room -= count
            continue
        if count <= MERGED_ARCS:
            bounds.append(block << BLOCK_BITS)
            room = MERGED_ARCS - count
            continue
        degree = sum((run.degrees(block) for run in runs), np.zeros(1 << BLOCK_BITS, np.int64))
        for target, more in enumerate(degree.tolist(), start=block << BLOCK_BITS):
            if more > room:
                bounds.append(target)
                room = MERGED_ARCS
            room -= more
    return [low for low, high in pairwise([*bounds, num_nodes]) if low < high] + [num_nodes]
