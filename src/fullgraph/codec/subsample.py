"""Send a random subset of columns, new in every step; both ends derive it from the key."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Annotated

import torch
from torch import Tensor

from fullgraph.axes import RATES
from fullgraph.codec.base import Full, Shape
from fullgraph.codec.rate import Constant, RateSchedule
from fullgraph.ops.hashing import draws, row_keys
from fullgraph.transport.key import Key
from fullgraph.values import Value


@dataclass(frozen=True)
class Subsample(Value):
    """x'[:, S] = x[:, S] and 0 elsewhere,  |S| = max(1, int(d / r(step)))  (VARCO, arXiv:2406.17611).

    S is the same for all rows and peers and for both directions of a step, so the backward pass is the transpose of the
    forward pass. `rescale` multiplies by d / |S|, which makes x' unbiased. At rate 1 the bytes equal those of Full.
    """

    rate: Annotated[RateSchedule, RATES] | float = field(default_factory=Constant)
    rescale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rate, int | float):
            object.__setattr__(self, "rate", Constant(float(self.rate)))

    def num_columns(self, width: int, step: int) -> int:
        """k = max(1, int(d / r(step)))."""
        assert not isinstance(self.rate, int | float)
        return min(width, max(1, int(width / self.rate.at(step))))

    def columns(self, width: int, key: Key) -> Tensor:
        """S in ascending order: the columns with the k smallest random draws, equal for both directions of the key."""
        seed = replace(key, way="forward", ends=None).seed
        a, b = row_keys(seed, torch.zeros(1, dtype=torch.int64))
        order = draws(a, b, torch.arange(width)).argsort(stable=True)
        return order[: self.num_columns(width, key.step)].sort().values

    def encode(self, x: Tensor, key: Key) -> Tensor:
        x_nD = x.reshape(x.shape[0], prod(x.shape[1:]))
        width = x_nD.shape[1]
        if self.num_columns(width, key.step) < width:
            x_nD = x_nD.index_select(1, self.columns(width, key).to(x.device))
        return Full().encode(x_nD, key)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        width = prod(shape[1:])
        kept = self.num_columns(width, key.step)
        if kept == width:
            return Full().decode(wire, shape, dtype, key)
        some_nk = Full().decode(wire, (shape[0], kept), dtype, key)
        if self.rescale:
            some_nk = some_nk * (width / kept)
        out_nD = torch.zeros(shape[0], width, dtype=dtype, device=wire.device)
        out_nD.index_copy_(1, self.columns(width, key).to(wire.device), some_nk)
        return out_nD.view(shape)

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return Full().nbytes((shape[0], self.num_columns(prod(shape[1:]), key.step)), dtype, key)
