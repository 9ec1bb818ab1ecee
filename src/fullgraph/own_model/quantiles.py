"""PyG's quantiles and medians of messages fail if the first node has none, because PyG reads before the first
message.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor

HOME = "torch_geometric.nn.aggr.quantile"


def with_empty_sets(part: Any) -> None:
    """Give the first node a temporary message, and replace its result by PyG's fill value."""
    kind = type(part)
    if kind.__module__ != HOME:
        return

    def forward(
        self: Any, x: Tensor, index: Any = None, ptr: Any = None, dim_size: int | None = None, dim: int = -2
    ) -> Tensor:
        if index is None or not dim_size or (index == 0).any():
            out: Tensor = kind.forward(self, x, index, ptr, dim_size, dim)
            return out
        shape = list(x.shape)
        shape[dim] = 1
        x = torch.cat([x.new_zeros(shape), x], dim)
        index = torch.cat([index.new_zeros(1), index])
        out = kind.forward(self, x, index, None, dim_size, dim)
        first = torch.zeros(dim_size, dtype=torch.long, device=x.device)
        first[0] = 1
        at = [1] * out.dim()
        at[dim % x.dim()] = dim_size
        return out.masked_fill(first.bool().view(at), self.fill_value)

    part.forward = MethodType(forward, part)
