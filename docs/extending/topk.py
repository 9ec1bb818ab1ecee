"""A codec: the k largest numbers of every row, with their columns."""

from dataclasses import dataclass
from math import prod
from typing import Annotated

import torch

from fullgraph.values import Range, Value


@dataclass(frozen=True)
class TopK(Value):
    """x' = x where |x| is one of the k largest of its row, else 0."""

    k: Annotated[int, Range(1, 1_000_000)] = 8

    def encode(self, x, key):
        x_nD = x.reshape(x.shape[0], prod(x.shape[1:]))
        columns_nk = x_nD.abs().topk(min(self.k, x_nD.shape[1]), dim=1).indices
        parts = x_nD.gather(1, columns_nk), columns_nk.int()
        return torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])

    def decode(self, wire, shape, dtype, key):
        out_nD = torch.zeros(shape[0], prod(shape[1:]), dtype=dtype, device=wire.device)
        kept = min(self.k, out_nD.shape[1])
        split = shape[0] * kept * dtype.itemsize
        values_nk = wire[:split].view(dtype).view(shape[0], kept)
        columns_nk = wire[split:].clone().view(torch.int32).view(shape[0], kept)
        return out_nD.scatter_(1, columns_nk.long(), values_nk).view(shape)

    def nbytes(self, shape, dtype, key):
        return shape[0] * min(self.k, prod(shape[1:])) * (dtype.itemsize + 4)
