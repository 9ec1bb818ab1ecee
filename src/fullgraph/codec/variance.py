"""Bits by row, chosen so that rounding adds as little variance as the bytes allow (AdaQP, arXiv:2306.01381).

Legend: n rows of a message, D numbers a row.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fullgraph.codec.base import Shape
from fullgraph.codec.bits import Bits
from fullgraph.codec.lowbit import LowBit
from fullgraph.codec.memory import ChannelFacts
from fullgraph.errors import InputError
from fullgraph.ops.lowbit import row_bytes
from fullgraph.transport.key import Key
from fullgraph.values import Range, Value

BITS = (2, 4, 8)


@dataclass(frozen=True)
class MinVariance(Value):
    """2, 4 or 8 bits for every row, chosen anew every `period` steps from the rows' spans.

    A row of span s in b bits adds  v(b) = w D s^2 / (6 (2^b - 1)^2)  to the variance of what its readers sum up;
    w is the sum of the squares of the numbers that they multiply it by (1 for a gradient). A message's bits minimise

        lam sum v(b) / sum v(2)  +  (1 - lam) bytes(b) / bytes(8),

    or, with a `budget`, sum v(b) while its rows take no more bytes than `budget` bits each. Both ends know the spans
    from the messages before, so that no bits need to be told. Before the first choice all rows take the most that the
    budget allows; without one, 8.
    """

    lam: Annotated[float, Range(0, 1)] = 0.5
    budget: Annotated[float, Range(0, 8)] = 0.0  # bits a number; 0: as lam says
    period: Annotated[int, Range(1, 10**9)] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.budget < BITS[0]:
            raise InputError(f"budget={self.budget}: a row takes 2, 4 or 8 bits; give 2 to 8, or 0 to go by lam")

    @property
    def start(self) -> int:
        """Bits of a row whose span is not known."""
        return max(bits for bits in BITS if bits <= (self.budget or BITS[-1]))

    def for_channel(self, facts: ChannelFacts) -> Bits:
        return Bits(self.chosen, start=self.start, period=self.period, weights=facts.squares)

    def encode(self, x: Tensor, key: Key) -> Tensor:
        return LowBit(self.start).encode(x, key)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        return LowBit(self.start).decode(wire, shape, dtype, key)

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        return LowBit(self.start).nbytes(shape, dtype, key)

    def chosen(self, spans_n: Tensor, weights_n: Tensor | None, width: int) -> Tensor:
        """The bits of every row of a message [n], uint8."""
        scale_n = spans_n.double().square().nan_to_num(0.0, posinf=0.0)
        if weights_n is not None:
            scale_n = scale_n * weights_n.double()
        variance_nb = scale_n[:, None] / torch.tensor([(2**bits - 1) ** 2 for bits in BITS]).double()
        bytes_b = torch.tensor([row_bytes(width, bits) for bits in BITS]).double()
        if self.budget:
            place_n = _within(variance_nb, bytes_b, len(spans_n) * row_bytes_of(width, self.budget))
        else:
            place_n = _weighed(variance_nb, bytes_b, self.lam)
        return torch.tensor(BITS, dtype=torch.uint8)[place_n]


def row_bytes_of(width: int, budget: float) -> float:
    """Bytes of a row in `budget` bits, which need not be whole."""
    return budget * width / 8 + row_bytes(width, 0)


def _weighed(variance_nb: Tensor, bytes_b: Tensor, lam: float) -> Tensor:
    """Row by row the place in BITS where the weighed sum is least; fewer bits if equal."""
    total = variance_nb[:, 0].sum().clamp(min=torch.finfo(torch.float64).tiny)
    cost_nb = lam * variance_nb / total + (1 - lam) * bytes_b / (bytes_b[-1] * max(len(variance_nb), 1))
    return cost_nb.argmin(1)


def _within(variance_nb: Tensor, bytes_b: Tensor, budget: float) -> Tensor:
    """More bits where a byte more takes off the most variance, for as long as there are bytes.

    A row's second step takes off less a byte than its first, so the steps in the order of their gain are the optimum
    of the problem whose last step may be a part.
    """
    n = len(variance_nb)
    cost_2 = bytes_b.diff()
    gain_n2 = -variance_nb.diff(dim=1) / cost_2.clamp(min=1)
    order = gain_n2.flatten().argsort(descending=True, stable=True)
    spent = n * bytes_b[0] + cost_2.expand(n, 2).flatten()[order].cumsum(0)
    taken = torch.zeros(2 * n, dtype=torch.int64)
    taken[order] = (spent <= budget).long()
    return taken.view(n, 2).sum(1)
