"""Smoothing: a moving average of what a channel receives, used in its place."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fullgraph.codec import Shape
from fullgraph.exchange.memory import are_shaped, rows_of
from fullgraph.values import Range, Value


@dataclass(frozen=True, kw_only=True)
class Smooth(Value):
    """avg = g avg + (1 - g) received, from zero, of features, gradients or both  (PipeGCN, arXiv:2203.10428).

    correct: divide by 1 - g^k after k receipts, which takes the pull towards zero out of the first steps.
    """

    gamma: Annotated[float, Range(0, 1, below=True)] = 0.95
    features: bool = True
    gradients: bool = True
    correct: bool = False


class Average:
    """The moving average of one way of a channel, by peer."""

    def __init__(self, smooth: Smooth) -> None:
        self.smooth = smooth
        self.rows: dict[int, Tensor] = {}
        self.count = 0
        self.version: int | None = None  # the last one taken in

    def take(self, version: int, received: dict[int, Tensor]) -> dict[int, Tensor]:
        """Take a version in, once however often it is read; what to use in its place."""
        gamma = self.smooth.gamma
        if version != self.version:
            self.version, self.count = version, self.count + 1
            for peer, rows in received.items():
                old = self.rows.get(peer)
                self.rows[peer] = (1 - gamma) * rows if old is None else old.mul_(gamma).add_(rows, alpha=1 - gamma)
        scale = 1 / (1 - gamma**self.count) if self.smooth.correct else 1.0
        return {peer: self.rows[peer] * scale for peer in received}

    def held(self) -> dict[str, Tensor]:
        if self.version is None:
            return {}
        return {"average": torch.tensor([self.version, self.count])} | {
            f"average.{peer}": rows for peer, rows in self.rows.items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        if "average" in state:
            self.version, self.count = state["average"].tolist()
            self.rows = rows_of(state, "average.")

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        return not self.rows or are_shaped(self.rows, come, dtype)
