"""A dense map of dense or sparse rows."""

from torch import Tensor, nn
from torch.nn import functional as F

from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, spmm


class Linear(nn.Linear):
    """y = x W^T + b, where x may be a sparse matrix."""

    def forward(self, x: Features) -> Tensor:
        if isinstance(x, Adjacency):
            y = self.product(x)
            return y if self.bias is None else y + self.bias
        return F.linear(x, self.weight, self.bias)

    def product(self, x: Features) -> Tensor:
        """x W^T alone: what commutes with an aggregation."""
        return spmm(x, self.weight.t()) if isinstance(x, Adjacency) else F.linear(x, self.weight)
