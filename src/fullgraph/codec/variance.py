"""Choose each row's bits so that rounding adds as little variance as the byte budget allows (AdaQP, arXiv:2306.01381).

Legend: n rows of a message, D numbers per row, b numbers of bits to choose from.
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
    """2, 4 or 8 bits for every row, chosen every `period` steps from the rows' spans (max - min).

    Quantizing a row of span s with b bits adds  v(b) = w D s^2 / (6 (2^b - 1)^2)  to the variance of its readers' sums.
    w is the sum of the squared edge weights that the row is multiplied by (1 for a gradient). The bits of a message
    minimise

        lam sum v(b) / sum v(2)  +  (1 - lam) bytes(b) / bytes(8).

    With a `budget`, they minimise sum v(b) while the message takes at most `budget` bits per number. Both ends know the
    spans from earlier messages, so the bits are never sent. Before the first choice all rows take the largest number of
    bits that the budget allows; without a budget, 8.
    """

    lam: Annotated[float, Range(0, 1)] = 0.5
    budget: Annotated[float, Range(0, 8)] = 0.0  # bits per number; 0: lam decides
    period: Annotated[int, Range(1, 10**9)] = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.budget < BITS[0]:
            raise InputError(f"budget={self.budget}: a row takes 2, 4 or 8 bits; give 2 to 8, or 0 to let lam decide")

    @property
    def start(self) -> int:
        """Bits of a row whose span is unknown."""
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
        """Choose the bits of every row of a message [n], uint8."""
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
    """Bytes of a row that takes `budget` bits per number; may be a fraction."""
    return budget * width / 8 + row_bytes(width, 0)


def _weighed(variance_nb: Tensor, bytes_b: Tensor, lam: float) -> Tensor:
    """For each row, the index in BITS with the smallest weighted sum; the fewer bits if two are equal."""
    total = variance_nb[:, 0].sum().clamp(min=torch.finfo(torch.float64).tiny)
    cost_nb = lam * variance_nb / total + (1 - lam) * bytes_b / (bytes_b[-1] * max(len(variance_nb), 1))
    return cost_nb.argmin(1)


def _within(variance_nb: Tensor, bytes_b: Tensor, budget: float) -> Tensor:
    """Raise the bits of the rows that lose the most variance per byte, until the budget is used up.

    A row's second step saves less variance per byte than its first. So taking the steps in order of their gain is the
    optimum of the relaxed problem, in which the last step may be taken in part.
    """
    n = len(variance_nb)
    cost_2 = bytes_b.diff()
    gain_n2 = -variance_nb.diff(dim=1) / cost_2.clamp(min=1)
    order = gain_n2.flatten().argsort(descending=True, stable=True)
    spent = n * bytes_b[0] + cost_2.expand(n, 2).flatten()[order].cumsum(0)
    taken = torch.zeros(2 * n, dtype=torch.int64)
    taken[order] = (spent <= budget).long()
    return taken.view(n, 2).sum(1)
