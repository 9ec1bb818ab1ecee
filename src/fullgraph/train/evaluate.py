"""Exact evaluation on the whole graph: fresh halos, full precision, no dropout."""

import torch
from torch import Tensor, nn

from fullgraph.placement import Shard
from fullgraph.tasks import Scores, Task


def logits_of(model: nn.Module, shard: Shard) -> Tensor:
    """Return logits of this rank's rows, as one process would compute them."""
    shard.eval_clock.tick()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits: Tensor = model(shard.full.x, shard.full.view)
    finally:
        model.train(was_training)
    return logits


def evaluate(model: nn.Module, shard: Shard, task: Task) -> Scores:
    """Return the task's score on each split; the same on every rank."""
    return task.scores(logits_of(model, shard), shard)
