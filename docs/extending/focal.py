"""A loss: the cross entropy, with smaller weights for rows that are already correct (Lin et al., arXiv:1708.02002)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn import functional as F

from fullgraph.values import Range, Value


@dataclass(frozen=True)
class Focal(Value):
    """-w_c (1 - p)^gamma log p, p the probability of the row's own class c; w is 1 where no weights are given."""

    gamma: Annotated[float, Range(0, 100)] = 2.0
    weights: tuple[float, ...] = ()  # weights of classes

    def __call__(self, logits, target):
        w = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device) if self.weights else None
        loss = F.cross_entropy(logits, target, reduction="none")  # one number per row, no mean
        scale = 1 if w is None else w[target]
        return scale * (1 - torch.exp(-loss)) ** self.gamma * loss
