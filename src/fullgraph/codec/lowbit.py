"""Quantize every row on its own grid of a few bits per number, with stochastic rounding."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fullgraph.codec.base import Shape
from fullgraph.errors import InputError
from fullgraph.ops.kernels import backend
from fullgraph.ops.lowbit import row_bytes
from fullgraph.transport.key import Key
from fullgraph.values import Value

CHOICES = (1, 2, 4, 8)


@dataclass(frozen=True)
class LowBit(Value):
    """q = floor((x - low) / step + u),  x' = low + q step,  u ~ U[0, 1): unbiased, |x' - x| <= step, nothing clips.

    Every row has its own low and step, which share 4 bytes; a row takes ceil(b d / 8) + 4 bytes (Sylvie,
    arXiv:2303.01277). A row far from zero spends more of the 4 bytes on low, so [100.3, 100.4] is rounded about as well
    as [0, 0.1]. u is a hash of (key, row, column), so a rerun sends the same bytes and the receiver needs only these
    bytes. A row that holds one float32 value everywhere decodes exactly, infinities included. Any other row that is not
    finite, or whose range is beyond float32, decodes to NaN everywhere: a diverged run must be visible. Every dtype
    travels as float32.
    """

    bits: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in CHOICES:
            raise InputError(f"bits={self.bits} does not pack into bytes; choose one of {', '.join(map(str, CHOICES))}")

    def encode(self, x: Tensor, key: Key) -> Tensor:
        rows, width = _block(tuple(x.shape))
        x_nD = x.detach().reshape(rows, width).to(torch.float32).contiguous()
        wire_nW = torch.zeros(rows, row_bytes(width, self.bits), dtype=torch.uint8, device=x.device)
        if x_nD.numel():
            backend(x_nD).lowbit_encode(x_nD, key.seed, self.bits, wire_nW)
        return wire_nW.view(-1)

    def decode(self, wire: Tensor, shape: Shape, dtype: torch.dtype, key: Key) -> Tensor:
        rows, width = _block(shape)
        out_nD = torch.empty(rows, width, device=wire.device)
        if out_nD.numel():
            backend(out_nD).lowbit_decode(wire.contiguous().view(rows, -1), self.bits, out_nD)
        return out_nD.view(shape).to(dtype)

    def nbytes(self, shape: Shape, dtype: torch.dtype, key: Key) -> int:
        rows, width = _block(shape)
        return rows * row_bytes(width, self.bits)


def _block(shape: Shape) -> tuple[int, int]:
    """Return the number of rows and the numbers per row."""
    return shape[0], prod(shape[1:])
