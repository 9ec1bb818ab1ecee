"""The number of a node by its id, through a hash table on a disk: 24 bytes per node, whatever the ids are.

Legend: N nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.columns import Columns
from fullgraph.data.names import Names
from fullgraph.data.streamed.scratch import mapped
from fullgraph.data.tables import need_ids, repeated
from fullgraph.errors import InputError

MOST_NODES = 2**31 - 1
ARRAYS = ("first", "high", "low", "number")


@dataclass(frozen=True, eq=False)
class Ids:
    """The ids of all nodes, in the order of the table, and the table that finds their numbers."""

    names: Names
    first: Array  # int32 [2^b + 1]: where the bucket of each b-bit prefix of `high` starts
    high: Array  # uint64 [N], ascending by prefix
    low: Array  # uint64 [N]
    number: Array  # int32 [N]

    def __len__(self) -> int:
        return len(self.number)

    def find(self, ids: Any) -> Array:
        """Return the numbers of nodes int32 of a pyarrow array of ids, -1 for unknown and empty ones."""
        from fullgraph.data.streamed import id_loops

        high, low = _hashed(ids)
        out = np.empty(len(ids), np.int32)
        shift = np.uint64(65 - len(self.first).bit_length())
        id_loops.look_up(high, low, shift, self.first, self.high, self.low, self.number, out)
        if ids.null_count:
            out[np.asarray(ids.is_null())] = -1
        return out

    @classmethod
    def open(cls, folder: Path) -> Ids:
        """Memory-map what `write_ids` wrote."""
        if (folder / "names.bin").exists():
            names = Names(mapped(folder / "names.bin", np.int64))
        else:
            names = Names(mapped(folder / "text.bin", np.uint8), mapped(folder / "starts.bin", np.int64))
        kinds = (np.int32, np.uint64, np.uint64, np.int32)
        return cls(names, *(mapped(folder / f"{name}.bin", kind) for name, kind in zip(ARRAYS, kinds, strict=True)))


def write_ids(folder: Path, table: Columns, column: str, progress: Callable[[int], None]) -> None:
    """Write the ids of a table of nodes into a new folder; refuse empty ids and duplicates."""
    table.need(column, "the name of each node")
    kind = table.id_type(column)
    hashes: list[tuple[Array, Array]] = []
    lengths: list[Array] = []
    row = 0
    with (folder / ("names.bin" if kind == "int64" else "text.bin")).open("wb") as file:
        for batch in table.batches({column: kind}):
            ids = batch.column(0)
            need_ids(table, ids, column, row)
            hashes.append(_hashed(ids))
            if kind == "int64":
                file.write(np.ascontiguousarray(ids.to_numpy()).data)
            else:
                starts, text = _texts(ids)
                lengths.append(np.diff(starts).astype(np.int32))
                file.write(text[starts[0] : starts[-1]].data)
            row += len(ids)
            progress(row)
    if not row:
        raise InputError(f"{table.name} has no rows: give one per node")
    if row > MOST_NODES:
        raise InputError(f"{table.name} has {row:,} rows, more than the {MOST_NODES:,} that can be read from a disk")
    if kind != "int64":
        starts = np.zeros(row + 1, np.int64)
        np.cumsum(np.concatenate(lengths), out=starts[1:])
        starts.tofile(folder / "starts.bin")
        lengths.clear()
    high, low = (np.concatenate([pair[half] for pair in hashes]) for half in (0, 1))
    hashes.clear()
    order = np.argsort(high, kind="stable")
    high, low = high[order], low[order]
    _refuse_repeated(table, column, high, low, order)
    bits = max(1, row.bit_length() - 1)
    first = np.zeros((1 << bits) + 1, np.int32)
    np.cumsum(np.bincount((high >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits), out=first[1:])
    for name, array in zip(ARRAYS, (first, high, low, order.astype(np.int32)), strict=True):
        array.tofile(folder / f"{name}.bin")


def _refuse_repeated(table: Columns, column: str, high: Array, low: Array, order: Array) -> None:
    """Refuse equal hashes, which equal ids have. Rows with equal first halves are next to each other."""
    alike = np.flatnonzero(high[1:] == high[:-1])
    if not alike.size:
        return
    near = np.unique(np.concatenate([alike, alike + 1]))
    near = near[np.lexsort((order[near], low[near], high[near]))]
    same = (high[near[1:]] == high[near[:-1]]) & (low[near[1:]] == low[near[:-1]])
    if not same.any():
        return
    again = int(order[near[1:][same]].min())
    row = 0
    for batch in table.batches({column: table.id_type(column)}):
        if again < row + len(batch):
            raise repeated(table.at(again), column, batch.column(0)[again - row].as_py())
        row += len(batch)
    raise AssertionError("the table has changed")


def _hashed(ids: Any) -> tuple[Array, Array]:
    import pyarrow as pa

    from fullgraph.data.streamed import id_loops

    high, low = np.empty(len(ids), np.uint64), np.empty(len(ids), np.uint64)
    if pa.types.is_integer(ids.type):
        id_loops.hash_numbers(ids.fill_null(0).to_numpy(zero_copy_only=False), high, low)
    else:
        id_loops.hash_texts(*_texts(ids), high, low)
    return high, low


def _texts(ids: Any) -> tuple[Array, Array]:
    """Return (starts [N+1], bytes) of a pyarrow array of large strings, sharing its memory."""
    _, starts, text = ids.buffers()
    offsets = np.frombuffer(starts, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    return offsets, np.frombuffer(text or b"", np.uint8)
