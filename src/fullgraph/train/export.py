"""Tables of results with the user's own ids, as CSV or Parquet, written with pyarrow."""

from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data import Names
from fullgraph.data.arrays import Array
from fullgraph.data.columns import EXTRA
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.storage import whole_file

FORMATS = ("npy", "csv", "parquet")
# For each table: its arrays, and the prefix of their columns. An array with one column drops the final `_`.
TABLES = {
    "predictions": {"classes": "class_", "probabilities": "p_", "values": "value_"},
    "embeddings": {"embeddings": "x_"},
    "pairs": {"pairs": "node_", "scores": "score_"},
}
BLOCK_ENTRIES = 1 << 22


def files_of(kind: str) -> list[str]:
    """Return the file names of all possible tables."""
    return [f"{table}.{kind}" for table in TABLES]


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


def export(arrays: Path, out: Path, kind: str, names: Names | None) -> list[Path]:
    """Write a folder's `.npy` arrays as tables in `out`, in blocks, with one row per node in the graph's own order."""
    written = []
    for table, columns in TABLES.items():
        existing = {name: arrays / f"{name}.npy" for name in columns if (arrays / f"{name}.npy").exists()}
        if existing:
            loaded = {columns[name]: np.load(path, mmap_mode="r") for name, path in existing.items()}
            texts = np.load(arrays / "labels.npy").tolist() if (arrays / "labels.npy").exists() else []
            written.append(out / f"{table}.{kind}")
            with whole_file(written[-1]) as staged:
                _write(staged, kind, loaded, None if table == "pairs" else names, texts)
    return written


def _write(path: Path, kind: str, arrays: dict[str, Array], names: Names | None, texts: list[str]) -> None:
    """texts: the classes' names, which name the columns of their probabilities."""
    import pyarrow as pa

    rows = len(next(iter(arrays.values())))
    width = sum(array[:1].size for array in arrays.values())
    step = max(1, BLOCK_ENTRIES // max(1, width))
    writer: Any = None
    try:
        for low in range(0, rows, step):
            high = min(rows, low + step)
            ids = pa.array(range(low, high) if names is None else names.block(low, high))
            batch = pa.record_batch({"id": ids} | _columns(arrays, low, high, texts))
            writer = writer or _writer(path, kind, batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


def _columns(arrays: dict[str, Array], low: int, high: int, texts: list[str]) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for prefix, array in arrays.items():
        block = np.asarray(array[low:high])
        if block.ndim == 1:
            columns[prefix.removesuffix("_")] = block
        else:
            ends = texts if prefix == "p_" and texts else range(block.shape[1])
            columns |= {f"{prefix}{end}": np.ascontiguousarray(block[:, c]) for c, end in enumerate(ends)}
    return columns


def _writer(path: Path, kind: str, schema: Any) -> Any:
    if kind == "csv":
        from pyarrow import csv

        return csv.CSVWriter(str(path), schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(str(path), schema)
