"""Norms over a row, and over the rows of all ranks."""

import torch
from torch import Tensor, nn

from fullgraph.nn.view import GraphView
from fullgraph.ops import layer_norm


class LayerNorm(nn.LayerNorm):
    """torch's layer norm over rows of one width, with our kernels if available."""

    def __init__(self, width: int, *, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class BatchNorm(nn.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over every node of the graph."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor, view: GraphView) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if self.training:
            # Two sums, one after the other, instead of sum and sum of squares: a difference of large numbers loses
            # digits.
            fine = torch.promote_types(x.dtype, torch.float32)
            mean = view.reduce(x.sum(0, dtype=fine)) / view.num_nodes
            var = view.reduce((x - mean).square().sum(0, dtype=fine)) / view.num_nodes
            if not view.again:
                self._remember(mean.detach(), var.detach(), view.num_nodes)
        return ((x - mean) * ((var + self.eps).rsqrt() * self.weight) + self.bias).to(x.dtype)

    def _remember(self, mean: Tensor, var: Tensor, count: int) -> None:
        unbiased = var * (count / max(1, count - 1))
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(unbiased, self.momentum)
