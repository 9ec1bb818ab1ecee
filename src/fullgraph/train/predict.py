"""Predictions as tables that all ranks write together, in the graph's own order of nodes and pairs.

`export` writes them once more with the user's own ids, as CSV or Parquet, with pyarrow.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from fullgraph.axes import TABLE_FORMATS
from fullgraph.data import Names
from fullgraph.data.arrays import Array
from fullgraph.data.columns import EXTRA
from fullgraph.errors import InputError, nearest, one_line
from fullgraph.own_code import told, unfit
from fullgraph.placement import Shard
from fullgraph.storage import discard, whole_file, workspace
from fullgraph.tasks import BESIDE, EMBEDDINGS, Predicted, Table, Task, TaskSpec, predicted_by, table_of
from fullgraph.train.trainer import logits_of
from fullgraph.transport import Key, barrier, shared_token
from fullgraph.values import Range, Value

BLOCK_ROWS = 1 << 16


@runtime_checkable
class Layered(Protocol):
    """A model with named layers."""

    def layer_names(self) -> dict[str, nn.Module]:
        """Return layers by number, starting at "1", and by the model's names."""


@contextmanager
def watched(model: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """Collect the results of the named or numbered layer while the block runs; an empty name collects nothing."""
    if not layer:
        yield []
        return
    names = model.layer_names() if isinstance(model, Layered) else dict(model.named_modules())
    if layer not in names:
        known = one_line(", ".join(name for name in names if name), 160)
        raise InputError(f"embeddings: the model has no layer {one_line(layer, 40)!r}; it has {known}")
    seen: list[Tensor] = []

    def keep(part: nn.Module, args: Any, out: Any) -> None:
        rows = out[0] if isinstance(out, tuple) and out else out
        if isinstance(rows, Tensor):
            seen.append(rows.detach())

    handle = names[layer].register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def rows_seen(seen: list[Tensor], layer: str, num_rows: int) -> Tensor:
    """Return the layer's only result as [rows, columns] in at least float32."""
    if len(seen) != 1:
        raise InputError(
            f"embeddings: layer {layer!r} gives rows {len(seen)} times in a pass, not once; name another one"
        )
    rows = seen[0]
    if not rows.dim() or len(rows) != num_rows:
        raise InputError(
            f"embeddings: layer {layer!r} gives {tuple(rows.shape)} for {num_rows} nodes; name another one"
        )
    rows = rows.reshape(num_rows, -1) if num_rows else rows.flatten(1)
    return rows.float() if rows.dtype.itemsize < 4 else rows


@dataclass(frozen=True, kw_only=True)
class Order(Value):
    """A request for predictions: the layer, the shards, and the folder to write to."""

    out: str
    embeddings: str = ""  # the name of a layer, or empty
    shards: str = ""  # the shards of a different graph; empty: the run's graph
    shards_checksum: Annotated[int, Range(0, 2**32 - 1)] = 0


def arrays_of(spec: TaskSpec) -> list[str]:
    """Return the file names of all arrays that may be written for a task."""
    return [f"{name}.npy" for name in (*(table.name for table in predicted_by(spec)), *BESIDE)]


def write_predictions(
    order: Order, model: nn.Module, shard: Shard, task: Task, spec: TaskSpec, class_names: tuple[str, ...] = ()
) -> Tensor:
    """Write the tables that the task declares, and `embeddings.npy` [N, D] if a layer is requested; return the model's
    output.

    class_names: names of the classes; with names, tables of class numbers hold these texts.

    Each file is written completely or not at all. Each rank writes its rows to a separate file, and rank 0 merges these
    files, so that two machines never write the same page.
    """
    folder = Path(order.out)
    if order.embeddings and shard.memory is not None and shard.memory.streams:
        raise InputError("embeddings: layers are computed in parts here, and only the output is kept; leave them out")
    with watched(model, order.embeddings) as seen:
        out = logits_of(model, shard)
    tables = _checked(task.tables(out, shard), spec)
    for name in [table.name for table in spec.predicts if class_names and table.classes == "values"]:
        tables[name] = replace(tables[name], rows=np.array(class_names)[tables[name].rows])
    if order.embeddings:
        tables[EMBEDDINGS.name] = table_of(rows_seen(seen, order.embeddings, len(out)), shard)
    transport, step = shard.transport, shard.eval_clock.step
    folder.mkdir(parents=True, exist_ok=True)
    token = shared_token(transport, Key("predict/token", step))
    with workspace(folder, token, owner=transport.rank == 0) as work:
        for name, table in tables.items():
            for piece, rows in ((name, table.rows), (f"{name}-index", table.index)):
                with _piece(work, piece, transport.rank).open("xb") as file:
                    np.save(file, rows)
        barrier(transport, Key("predict/written", step))
        if transport.rank == 0:
            for name, table in tables.items():
                _merge(work, folder / f"{name}.npy", table.count, transport.size)
        barrier(transport, Key("predict/merged", step))
    return out


def _checked(tables: dict[str, Table], spec: TaskSpec) -> dict[str, Table]:
    """Check a task's tables: they must be those that it declares, with an index for each row."""
    names = {table.name for table in spec.predicts}
    if not isinstance(tables, dict) or tables.keys() != names:
        found = ", ".join(map(str, tables)) if isinstance(tables, dict) else told(tables)
        raise unfit(
            spec, f"returned the tables {found or 'none'}: return those that it declares, {', '.join(sorted(names))}"
        )
    for name, table in tables.items():
        if len(table.rows) != len(table.index) or not 0 <= len(table.rows) <= table.count:
            raise unfit(
                spec,
                f"returned {len(table.rows)} rows of {name} with {len(table.index)} places among {table.count}: "
                "give one place for each row",
            )
    return dict(tables)


def write_ids(order: Order, names: Names | None) -> None:
    """Write `ids.npy` [N]: the user's name of each node, numbers or texts; no file if nodes have no names."""
    path = Path(order.out) / "ids.npy"
    if names is None:
        discard(path, lambda _: "")  # left by an earlier prediction of a different graph
        return
    blocks = [(low, min(len(names), low + BLOCK_ROWS)) for low in range(0, len(names), BLOCK_ROWS)]
    texts = names.starts is not None
    width = max((len(str(name)) for block in blocks for name in names.block(*block)), default=1) if texts else 0
    with whole_file(path) as staged:
        out = _room(staged, (len(names),), np.dtype(f"<U{max(1, width)}" if texts else np.int64))
        for low, high in blocks:
            out[low:high] = names.block(low, high)
        out.flush()
        del out


def write_labels(order: Order, class_names: tuple[str, ...]) -> None:
    """Write `labels.npy` [C]: the text of each column of `probabilities.npy`, if labels were texts."""
    path = Path(order.out) / "labels.npy"
    if not class_names:
        discard(path, lambda _: "")  # left by an earlier prediction of a different graph
        return
    with whole_file(path) as staged, staged.open("wb") as file:
        np.save(file, np.array(class_names))


def _piece(work: Path, name: str, rank: int) -> Path:
    return work / f"{name}-{rank}.npy"


def _merge(work: Path, path: Path, count: int, ranks: int) -> None:
    """Merge the ranks' pieces into one table, with one piece in memory at a time."""
    with whole_file(path) as staged:
        out = None
        for rank in range(ranks):
            rows, index = np.load(_piece(work, path.stem, rank)), np.load(_piece(work, f"{path.stem}-index", rank))
            if out is None:
                out = _room(staged, (count, *rows.shape[1:]), rows.dtype)
            out[index] = rows
        assert out is not None
        out.flush()
        del out


def _room(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> "np.memmap[Any, Any]":
    """Create an array in a file."""
    out = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    # Report a full disk now; otherwise it is a bus error when a page of a sparse file is first touched.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, out.offset + out.nbytes)
    return out


BLOCK_ENTRIES = 1 << 22


def files_of(spec: TaskSpec, kind: str) -> list[str]:
    """Return the file names of all tables that may be written for a task."""
    return list(dict.fromkeys(f"{table.file}.{kind}" for table in predicted_by(spec)))


def check_format(kind: str) -> None:
    """Refuse an unknown format, and one that cannot be written here."""
    if kind not in TABLE_FORMATS:
        problem = f"format {one_line(kind, 40)!r} is unknown{nearest(kind, TABLE_FORMATS)}"
        raise InputError(f"{problem}: choose from {', '.join(TABLE_FORMATS)}")
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
    """A predicted array and its name."""

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
