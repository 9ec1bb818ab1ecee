"""A dense map of dense or sparse rows."""

from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, spmm


def linear(x: Features, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b, where x may be a sparse matrix."""
    if not isinstance(x, Adjacency):
        return F.linear(x, weight, bias)
    y = spmm(x, weight.t())
    return y if bias is None else y + bias


class Linear(nn.Linear):
    """y = x W^T + b, where x may be a sparse matrix."""

    def forward(self, x: Features) -> Tensor:
        return linear(x, self.weight, self.bias)

    def product(self, x: Features) -> Tensor:
        """x W^T alone: what commutes with an aggregation."""
        return linear(x, self.weight)
