"""Tables of results with the user's own ids, as CSV or Parquet, written with pyarrow."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fullgraph.data import Names
from fullgraph.data.arrays import Array
from fullgraph.data.columns import EXTRA
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.storage import whole_file
from fullgraph.tasks import Predicted, TaskSpec, predicted_by

FORMATS = ("npy", "csv", "parquet")
BLOCK_ENTRIES = 1 << 22


def files_of(spec: TaskSpec, kind: str) -> list[str]:
    """Return the file names of all tables that may be written for a task."""
    return list(dict.fromkeys(f"{table.file}.{kind}" for table in predicted_by(spec)))


def check_format(kind: str) -> None:
    """Refuse an unknown format, and one that cannot be written here."""
    if kind not in FORMATS:
        problem = f"format {one_line(kind, 40)!r} is unknown{nearest(kind, FORMATS)}"
        raise InputError(f"{problem}: choose from {', '.join(FORMATS)}")
    if kind != "npy":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise InputError(f"format {kind} needs an extra: {EXTRA}") from None


def export(spec: TaskSpec, arrays: Path, out: Path, kind: str, names: Names | None) -> list[Path]:
    """Write a folder's `.npy` arrays as tables in `out`, in blocks, with one row per node in the graph's own order."""
    texts = np.load(arrays / "labels.npy").tolist() if (arrays / "labels.npy").exists() else []
    written = []
    for file in files_of(spec, kind):
        columns = [
            Column(table, np.load(arrays / f"{table.name}.npy", mmap_mode="r"))
            for table in predicted_by(spec)
            if f"{table.file}.{kind}" == file and (arrays / f"{table.name}.npy").exists()
        ]
        if columns:
            written.append(out / file)
            with whole_file(written[-1]) as staged:
                _write(staged, kind, columns, names if columns[0].table.of == "nodes" else None, texts)
    return written


class Column(NamedTuple):
    """A predicted array and what it is called."""

    table: Predicted
    array: Array

    def named(self, low: int, high: int, texts: list[str]) -> dict[str, Array]:
        """Some rows by column name; texts name the columns of classes."""
        block, prefix = np.asarray(self.array[low:high]), self.table.prefix
        if block.ndim == 1:
            return {prefix.removesuffix("_"): block}
        ends = texts if self.table.classes == "columns" and texts else range(block.shape[1])
        return {f"{prefix}{end}": np.ascontiguousarray(block[:, c]) for c, end in enumerate(ends)}


def _write(path: Path, kind: str, columns: list[Column], names: Names | None, texts: list[str]) -> None:
    """texts: the classes' names."""
    import pyarrow as pa

    rows = len(columns[0].array)
    width = sum(column.array[:1].size for column in columns)
    step = max(1, BLOCK_ENTRIES // max(1, width))
    writer: Any = None
    try:
        for low in range(0, rows, step):
            high = min(rows, low + step)
            found = {"id": pa.array(range(low, high) if names is None else names.block(low, high))}
            for column in columns:
                found |= column.named(low, high, texts)
            batch = pa.record_batch(found)
            writer = writer or _writer(path, kind, batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


def _writer(path: Path, kind: str, schema: Any) -> Any:
    if kind == "csv":
        from pyarrow import csv

        return csv.CSVWriter(str(path), schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(str(path), schema)
