"""Scores over the rows of all ranks: every rank computes sums over its own rows, and these sums are added."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fullgraph.transport import Key, Transport, gather_rows


class Metric(Protocol):
    """A score over the rows of all ranks; every rank returns the same number.

    A larger score is better unless `smaller_is_better` is true. If `ranked` is true, link prediction passes one row per
    edge: the edge's score, then the scores of its candidates.
    """

    def __call__(self, logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float: ...


F = TypeVar("F", bound=Callable[..., float])


def says(**facts: bool) -> Callable[[F], F]:
    """Give a metric attributes, such as `smaller_is_better`."""

    def give(metric: F) -> F:
        vars(metric).update(facts)
        return metric

    return give


def accuracy(logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """Share of rows whose largest logit is their label."""
    right = (logits.argmax(1) == target).sum()
    right_total, total = transport.all_reduce(key, torch.stack([right, right.new_tensor(len(target))])).wait().tolist()
    return float(right_total / max(1, total))


def micro_f1(logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """2 TP / (2 TP + FP + FN) over all rows and labels; a label is predicted if its logit is positive."""
    said, true = logits > 0, target > 0.5
    counts = torch.stack([(said & true).sum(), (said ^ true).sum()])
    hits, misses = transport.all_reduce(key, counts).wait().tolist()
    return float(2 * hits / max(1, 2 * hits + misses))


def roc_auc(logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """P(score of a positive > score of a negative), ties count half; averaged over the labels that have both kinds."""
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


def _sums(parts: list[Tensor], transport: Transport, key: Key) -> list[Tensor]:
    """Sum each tensor over all ranks, in float64 and in one message."""
    flat = torch.cat([part.double().reshape(-1) for part in parts])
    total = transport.all_reduce(key, flat).wait()
    split = total.split([part.numel() for part in parts])
    return [whole.view(part.shape) for whole, part in zip(split, parts, strict=True)]


@says(smaller_is_better=True)
def rmse(values: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """Root of the mean squared error over all rows and columns."""
    error = values.double() - target.double()
    squares, count = _sums([error.square().sum(), torch.tensor(error.numel(), device=error.device)], transport, key)
    return float((squares / count).sqrt())


@says(smaller_is_better=True)
def mae(values: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """Mean absolute error over all rows and columns."""
    error = values.double() - target.double()
    total, count = _sums([error.abs().sum(), torch.tensor(error.numel(), device=error.device)], transport, key)
    return float(total / count)


def r2(values: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """1 - sum (y - v)^2 / sum (y - mean y)^2, averaged over columns; NaN if a column is constant."""
    target = target.double()
    total_C, count = _sums([target.sum(0), torch.tensor(len(target), device=target.device)], transport, key)
    mean_C = total_C / count
    parts = [(target - values.double()).square().sum(0), (target - mean_C).square().sum(0)]
    error_C, spread_C = _sums(parts, transport, Key(f"{key.channel}/spread", key.step))
    return float((1 - error_C / spread_C).mean()) if bool((spread_C > 0).all()) else float("nan")


@says(ranked=True)
def mrr(scores: Tensor, target: Tensor, transport: Transport, key: Key) -> float:
    """Mean of 1 / rank of an edge among its candidates; column 0 holds the edge, and equal scores count half.

    rank = 1 + candidates above it + half of the candidates equal to it.
    """
    edge, others = scores[:, :1], scores[:, 1:]
    rank = 1 + (others > edge).sum(1) + (others == edge).sum(1) / 2
    total, count = _sums([(1 / rank.double()).sum(), torch.tensor(len(rank), device=rank.device)], transport, key)
    return float(total / count) if float(count) else float("nan")
