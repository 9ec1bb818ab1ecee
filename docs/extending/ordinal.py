"""A task: ordered classes, such as grades, learned as the probabilities that a node is above each class."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fullgraph.tasks import MeanLoss, NodeTask, OfNodes, Predicted
from fullgraph.tasks.losses import bce


@dataclass(frozen=True, kw_only=True)
class Ordinal(OfNodes):
    """C - 1 numbers per node: the k-th is the log-odds that its class is above k  (Cao et al., arXiv:1901.07884)."""

    predicts: ClassVar = (Predicted(name="levels", prefix="level_"), Predicted(name="chances", prefix="above_"))

    def out_width(self, facts):
        return facts.classes - 1

    def build(self, facts, *, metric, loss, seed, part, shard, model):
        return NodeTask(off_by if metric == "auto" else metric, MeanLoss(bce), above, levels)


def above(out, y):
    return (y[:, None] > torch.arange(out.shape[1], device=y.device)).to(out.dtype)


def levels(out):
    return {"levels": (out > 0).sum(1), "chances": out.sigmoid()}


def off_by(out, target, transport, key):
    """Mean distance of the level from the true one, over the rows of all ranks."""
    wrong = ((out > 0).sum(1) - target.sum(1)).abs().sum().double()
    total, count = transport.all_reduce(key, torch.stack([wrong, wrong.new_tensor(len(out))])).wait()
    return float(total / count)


off_by.smaller_is_better = True
