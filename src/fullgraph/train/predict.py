"""Every node's class and probabilities, in the graph's own node order."""

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fullgraph.placement import Shard
from fullgraph.storage import held, whole_file
from fullgraph.train.evaluate import logits_of
from fullgraph.train.task import Task
from fullgraph.transport import Key

TABLES = ("probabilities", "classes")


def write_predictions(folder: Path, model: nn.Module, shard: Shard, task: Task) -> None:
    """`probabilities.npy` [N, C] float32 and `classes.npy` [N] (or [N, C] 0/1, multi-label), whole or not there.

    Each rank writes its own rows to a file of its own, and rank 0 merges them: two machines never write one page.
    """
    probabilities = task.probabilities(logits_of(model, shard)).float().cpu().numpy()
    multilabel = task.loss_name == "bce"
    classes = (probabilities > 0.5).astype(np.uint8) if multilabel else probabilities.argmax(1).astype(np.int64)
    tables = {"probabilities": probabilities, "classes": classes, "ids": shard.full.ids.cpu().numpy()}
    transport, step = shard.transport, shard.eval_clock.step
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name, rows in tables.items():
            path = _piece(folder, name, transport.rank)
            with path.open("wb") as file:
                stack.callback(path.unlink, missing_ok=True)
                stack.enter_context(held(path))
                np.save(file, rows)
        transport.all_reduce(Key("predict/written", step), torch.zeros(1)).wait()
        if transport.rank == 0:
            for name in TABLES:
                _merge(folder, name, shard.full.view.num_nodes, transport.size)
        transport.all_reduce(Key("predict/merged", step), torch.zeros(1)).wait()


def _piece(folder: Path, name: str, rank: int) -> Path:
    """Named as staged files are, so that the next run sweeps it away should this one die."""
    return folder / f".{name}.npy.{rank:08x}.new"


def _merge(folder: Path, name: str, nodes: int, ranks: int) -> None:
    """One table in the graph's own node order from the ranks' pieces, a piece in memory at a time."""
    with whole_file(folder / f"{name}.npy") as staged:
        out = None
        for rank in range(ranks):
            rows, ids = np.load(_piece(folder, name, rank)), np.load(_piece(folder, "ids", rank))
            if out is None:
                out = np.lib.format.open_memmap(staged, mode="w+", dtype=rows.dtype, shape=(nodes, *rows.shape[1:]))
                # A full disk must be an error now, not a bus error when a page of a sparse file is first touched.
                with staged.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, out.offset + out.nbytes)
            out[ids] = rows
        assert out is not None
        out.flush()
        del out
