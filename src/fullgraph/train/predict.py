"""Predictions as tables that all ranks write together, in the graph's own order of nodes and pairs."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import nn

from fullgraph.data import Names
from fullgraph.placement import Shard
from fullgraph.storage import discard, whole_file, workspace
from fullgraph.tasks import Table, Task
from fullgraph.train.embeddings import rows_seen, watched
from fullgraph.train.evaluate import logits_of
from fullgraph.transport import Key, shared_token
from fullgraph.values import Range, Value

BLOCK_ROWS = 1 << 16
TABLES = ("classes", "probabilities", "values", "embeddings", "pairs", "scores", "ids", "labels")


@dataclass(frozen=True, kw_only=True)
class Order(Value):
    """A request for predictions: the layer, the shards, and the folder to write to."""

    out: str
    embeddings: str = ""  # the name of a layer, or empty
    shards: str = ""  # of a different graph; empty: the run's graph
    shards_checksum: Annotated[int, Range(0, 2**32 - 1)] = 0

    @property
    def files(self) -> list[Path]:
        """Return all files that may be written."""
        return [Path(self.out) / f"{name}.npy" for name in TABLES]


def write_predictions(
    order: Order, model: nn.Module, shard: Shard, task: Task, class_names: tuple[str, ...] = ()
) -> None:
    """Write the task's tables, and `embeddings.npy` [N, D] if a layer is requested:

    classes     `probabilities.npy` [N, C] float32, `classes.npy` [N] (or [N, C] 0/1, multi-label)
    regression  `values.npy` [N, C] float32
    link        `embeddings.npy` [N, D] float32; `pairs.npy` [P, 2] and their probabilities, `scores.npy` [P]

    class_names: names of the classes; with names, `classes.npy` [N] holds these texts.

    Each file is written completely or not at all. Each rank writes its rows to a separate file, and rank 0 merges these
    files, so that two machines never write the same page.
    """
    folder = Path(order.out)
    with watched(model, order.embeddings) as seen:
        out = logits_of(model, shard)
    tables = task.tables(out, shard)
    if class_names and "classes" in tables:
        tables["classes"] = replace(tables["classes"], rows=np.array(class_names)[tables["classes"].rows])
    if order.embeddings:
        rows = rows_seen(seen, order.embeddings, len(out)).cpu().numpy()
        tables["embeddings"] = Table(rows, shard.full.ids.cpu().numpy(), shard.full.view.num_nodes)
    transport, step = shard.transport, shard.eval_clock.step
    folder.mkdir(parents=True, exist_ok=True)
    token = shared_token(transport, Key("predict/token", step))
    with workspace(folder, token, owner=transport.rank == 0) as work:
        for name, table in tables.items():
            for piece, rows in ((name, table.rows), (f"{name}-index", table.index)):
                with _piece(work, piece, transport.rank).open("xb") as file:
                    np.save(file, rows)
        transport.all_reduce(Key("predict/written", step), torch.zeros(1)).wait()
        if transport.rank == 0:
            for name, table in tables.items():
                _merge(work, folder / f"{name}.npy", table.count, transport.size)
        transport.all_reduce(Key("predict/merged", step), torch.zeros(1)).wait()


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
