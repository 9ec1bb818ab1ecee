"""Every node's class and probabilities, in the graph's own node order."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fullgraph.placement import Shard
from fullgraph.train.evaluate import logits_of
from fullgraph.train.task import Task
from fullgraph.transport import Key


def write_predictions(folder: Path, model: nn.Module, shard: Shard, task: Task) -> None:
    """`probabilities.npy` [N, C] float32 and `classes.npy` [N] (or [N, C] 0/1, multi-label), whole or not there.

    Ranks fill their own rows of one memory-mapped file, so no rank ever holds all of them.
    """
    probabilities = task.probabilities(logits_of(model, shard)).float().cpu().numpy()
    multilabel = task.loss_name == "bce"
    classes = (probabilities > 0.5).astype(np.uint8) if multilabel else probabilities.argmax(1).astype(np.int64)
    ids, step = shard.full.ids.cpu().numpy(), shard.eval_clock.step
    transport = shard.transport
    nodes = shard.full.view.num_nodes
    files = {"probabilities": probabilities, "classes": classes}
    names = {name: (folder / f".{name}.npy", folder / f"{name}.npy") for name in files}
    if transport.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in files.items():
            _create(names[name][0], (nodes, *rows.shape[1:]), rows.dtype)
    transport.all_reduce(Key("predict/open", step), torch.zeros(1)).wait()
    for name, rows in files.items():
        out = np.lib.format.open_memmap(names[name][0], mode="r+")
        out[ids] = rows
        out.flush()
        del out
    transport.all_reduce(Key("predict/close", step), torch.zeros(1)).wait()
    if transport.rank == 0:
        for temporary, final in names.values():
            os.replace(temporary, final)


def _create(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    out = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    # A full disk must be an error now, not a bus error when a page of a sparse file is first touched.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, out.offset + out.nbytes)
    del out
