"""Exact evaluation on the whole graph: fresh halos, full precision, no dropout."""

import math

import torch
from torch import Tensor, nn

from fullgraph.placement import Shard
from fullgraph.train.task import Task
from fullgraph.transport import Key

SPLITS = ("train", "val", "test")
Scores = dict[str, float | None]  # a split without both kinds of label has no ROC-AUC


def logits_of(model: nn.Module, shard: Shard) -> Tensor:
    """Logits of this rank's rows, computed as one process would."""
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
    """The task's score on each split, the same on every rank."""
    logits = logits_of(model, shard)
    scores: Scores = {}
    for split in SPLITS:
        rows = shard.full.splits[split]
        key = Key(f"eval/{split}", shard.eval_clock.step)
        score = task.metric(logits[rows], shard.full.y[rows], shard.full.owners, key)
        scores[split] = None if math.isnan(score) else score
    return scores
