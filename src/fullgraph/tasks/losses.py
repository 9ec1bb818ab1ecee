"""Losses: one number per row or per entry. A rank's summand of the mean is its sum divided by the count of all ranks.

A user's loss is such a function, or returns the sum over its rows: `(logits, target) -> Tensor`.
"""

from typing import Protocol, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.axes import LOSSES
from fullgraph.own_code import own_code, told, unfit


class RowLoss(Protocol):
    """Returns one number per row [n], one per entry [n, C], or the sum over all rows."""

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor: ...


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-log softmax(z_i)[y_i]."""
    return F.cross_entropy(logits, target, reduction="none")


def bce(logits: Tensor, target: Tensor) -> Tensor:
    """The binary cross-entropy of every entry."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


def mse(values: Tensor, target: Tensor) -> Tensor:
    """(v - y)^2."""
    return (values - target).square()


def mae(values: Tensor, target: Tensor) -> Tensor:
    """|v - y|."""
    return (values - target).abs()


def huber(values: Tensor, target: Tensor) -> Tensor:
    """(v - y)^2 / 2 where |v - y| is below 1, else |v - y| - 1/2."""
    return F.huber_loss(values, target, reduction="none")


class MeanLoss:
    """A rank's summand of the mean of a row loss over the rows of all ranks."""

    def __init__(self, loss: RowLoss) -> None:
        self.loss, self.name = loss, LOSSES.label(loss)
        self._sums_are_sums = False  # checked when the loss first returns a single number

    def __call__(self, logits: Tensor, target: Tensor, count: int) -> Tensor:
        """count: rows of all ranks."""
        with own_code(self.loss, fix="a loss is called with (logits, target)"):
            found = self.loss(logits, target)
        if not is_floats(found) or found.shape not in ((), logits.shape[:1], logits.shape):
            raise unfit(self.loss, f"returned {told(found)} for {len(logits)} rows: return one number per row")
        if logits.requires_grad and not found.requires_grad and len(logits):
            raise unfit(
                self.loss, "returned numbers without a gradient: compute them from logits, without detach or no_grad"
            )
        if found.dim() == 0 and not self._sums_are_sums and len(logits):
            self._check_sum(logits.detach(), target, found.detach())
        return found.sum() / (count * (logits.shape[1] if found.dim() == 2 else 1))

    @torch.no_grad()
    def _check_sum(self, logits: Tensor, target: Tensor, found: Tensor) -> None:
        """Refuse a loss that returns a mean over one rank's rows: twice the rows must give twice the sum."""
        with own_code(self.loss):
            twice = self.loss(torch.cat([logits, logits]), torch.cat([target, target]))
            as_sums = torch.allclose(twice, 2 * found, rtol=1e-3)
        if not as_sums:
            raise unfit(
                self.loss,
                "returns the mean of its rows, which depends on the ranks: return one number per row "
                "(reduction='none'), or their sum",
            )
        self._sums_are_sums = True


def is_floats(found: object) -> TypeGuard[Tensor]:
    """Whether `found` is a tensor of real numbers."""
    return isinstance(found, Tensor) and found.is_floating_point()


def full(rows: Tensor) -> Tensor:
    """Convert to at least float32, for exponentials and sums over all rows."""
    return rows.float() if rows.dtype.itemsize == 2 else rows
