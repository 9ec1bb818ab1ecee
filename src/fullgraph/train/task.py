"""What is learned: the loss of one rank's rows, and how a score is computed over all ranks."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.axes import METRICS
from fullgraph.errors import InputError
from fullgraph.transport import Key, Transport, gather_rows


def cross_entropy(logits: Tensor, target: Tensor, count: int) -> Tensor:
    """-sum_i log softmax(z_i)[y_i] / count, count over all ranks."""
    return F.cross_entropy(logits, target, reduction="sum") / count


def binary_cross_entropy(logits: Tensor, target: Tensor, count: int) -> Tensor:
    """The mean over all nodes and labels of the binary cross entropy."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / (count * logits.shape[1])


class Metric(Protocol):
    """A score over the rows of all ranks; every rank returns the same number."""

    def __call__(self, logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float: ...


def accuracy(logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """Fraction of rows whose largest logit is their label."""
    right = (logits.argmax(1) == target).sum()
    right_total, total = transport.all_reduce(key, torch.stack([right, right.new_tensor(len(target))])).wait().tolist()
    return float(right_total / max(1, total))


def micro_f1(logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """2 TP / (2 TP + FP + FN) over all rows and labels, a label predicted where its logit is positive."""
    said, true = logits > 0, target > 0.5
    counts = torch.stack([(said & true).sum(), (said ^ true).sum()])
    hits, misses = transport.all_reduce(key, counts).wait().tolist()
    return float(2 * hits / max(1, 2 * hits + misses))


def roc_auc(logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """P(score of a positive > score of a negative), ties counted half; labels that occur both ways, averaged."""
    if target.dim() == 1:
        scores, truth = (logits[:, 1] - logits[:, 0])[:, None], target[:, None]
    else:
        scores, truth = logits, target
    both = gather_rows(torch.cat([scores.double(), truth.double()], 1), transport, key)
    scores, truth = both[:, : scores.shape[1]], both[:, scores.shape[1] :] > 0.5
    areas = [_auc(scores[:, c], truth[:, c]) for c in range(scores.shape[1]) if 0 < int(truth[:, c].sum()) < len(truth)]
    return sum(areas) / len(areas) if areas else float("nan")


def _auc(score: Tensor, truth: Tensor) -> float:
    """Mann-Whitney:  (sum of the positives' ranks - P(P+1)/2) / (P N), equal scores sharing their mean rank."""
    _, group, size = torch.unique(score, return_inverse=True, return_counts=True)
    last = torch.cumsum(size, 0).double()
    rank = (last - (size.double() - 1) / 2)[group]
    positives = int(truth.sum())
    wins = float(rank[truth].sum()) - positives * (positives + 1) / 2
    return wins / (positives * (len(truth) - positives))


@dataclass(frozen=True, slots=True)
class Task:
    """Loss and score of a graph's labels."""

    loss_name: str
    metric: Metric

    @property
    def metric_name(self) -> str:
        return METRICS.label(self.metric)

    def loss(self, logits: Tensor, target: Tensor, count: int) -> Tensor:
        kind = binary_cross_entropy if self.loss_name == "bce" else cross_entropy
        return kind(_full(logits), target, count)

    def probabilities(self, logits: Tensor) -> Tensor:
        logits = _full(logits)
        return logits.sigmoid() if self.loss_name == "bce" else logits.softmax(1)


def _full(logits: Tensor) -> Tensor:
    """At least float32, for exponentials and sums over all rows."""
    return logits.float() if logits.dtype.itemsize == 2 else logits


def task_of(*, multilabel: bool, classes: int, metric: Metric | str = "auto") -> Task:
    """The usual task for these labels, or the metric asked for where it fits them; a user's own always does."""
    fitting = ["micro_f1", "roc_auc"] if multilabel else ["accuracy", *(["roc_auc"] if classes == 2 else [])]
    chosen: Metric = METRICS[fitting[0] if metric == "auto" else metric] if isinstance(metric, str) else metric
    name = METRICS.name_of(chosen)
    if name in METRICS and name not in fitting:
        labels = "multi-label" if multilabel else f"{classes}-class"
        raise InputError(f"metric {name!r} does not fit {labels} data; use one of: {', '.join(fitting)}")
    return Task("bce" if multilabel else "cross_entropy", chosen)
