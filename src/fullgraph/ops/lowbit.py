"""Rows of float32 as codes of 1, 2, 4 or 8 bits: the wire format, and its meaning in torch.

A row on the wire is  low (bf16) | step (bf16) | codes, column 0 in the lowest bits of the first byte;  little-endian.

    low  = bf16(min x) rounded down,  step = bf16((max x - low) / (2^b - 1)) rounded up and at least 2^-126
    code = min(floor((x - low) / step + u), 2^b - 1),  u = draw(key, row, column) / 2^32 cut to 24 bits

The parameters are rounded before the codes are drawn, so the mean of `low + code * step` is x. A step is never
negative; its sign bit marks a row that is one float32 throughout, whose 32 bits are the 16 of low, the other 15 of step
and code 0. A row with a NaN, an infinity among other numbers, or a range beyond float32 is marked, with the value NaN.
loops_lowbit.py has the same for numba; a test holds the two to the same bytes.
"""

import torch
from torch import Tensor

from fullgraph.ops.hashing import draws, row_keys

# Shapes: n rows, D numbers a row, W bytes a row on the wire, C of them codes.

PARAMETER_BYTES = 4
NAN_BITS, INF_BITS = 0x7FC00000, 0x7F800000
MINUS_INF_RANK = -0x7F800001  # where -inf stands in the order of `_rank`
SMALLEST_STEP = 0x0080  # 2^-126, whose inverse is finite


def row_bytes(width: int, bits: int) -> int:
    """W = ceil(b D / 8) + 4."""
    return (bits * width + 7) // 8 + PARAMETER_BYTES


def lowbit_encode(x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None:
    """Fill the wire with the rows; there is at least one number. float32, contiguous."""
    rows, width = x_nD.shape
    top = 2**bits - 1
    rank_nD = _rank(x_nD.view(torch.int32))
    first_n, last_n = rank_nD.amin(1), rank_nD.amax(1)
    min_n, max_n = (_rank(r).view(torch.float32) for r in (first_n, last_n))
    min_bits_n = min_n.view(torch.int32)
    low_bits_n = torch.where(min_bits_n < 0, min_bits_n + 0xFFFF, min_bits_n) & ~0xFFFF
    low_n = low_bits_n.view(torch.float32)
    step16_n = (((max_n - low_n) / top).view(torch.int32) + 0xFFFF >> 16).clamp_(min=SMALLEST_STEP)
    step_n = (step16_n << 16).view(torch.float32)

    same_n = min_n == max_n
    finite_n = (first_n > MINUS_INF_RANK) & (last_n < INF_BITS) & torch.isfinite(low_n + step_n * top)
    marked_n = same_n | ~finite_n
    value_n = torch.where(same_n, min_bits_n, NAN_BITS)

    a_n, b_n = row_keys(key, torch.arange(rows, device=x_nD.device))
    columns_D = torch.arange(width, device=x_nD.device)
    u_nD = (draws(a_n[:, None], b_n[:, None], columns_D) >> 8).float() * 2.0**-24
    at_nD = (x_nD - low_n[:, None]) * (1 / step_n)[:, None] + u_nD
    code_nD = torch.where(marked_n[:, None], 0, at_nD).to(torch.int32).clamp_(max=top)
    code_nD[:, 0] = torch.where(marked_n, value_n & 1, code_nD[:, 0])

    head_n = torch.where(marked_n, value_n, low_bits_n) >> 16
    tail_n = torch.where(marked_n, value_n >> 1 & 0x7FFF | 0x8000, step16_n)
    wire_nW[:, :PARAMETER_BYTES] = torch.stack([head_n, tail_n], 1).to(torch.int16).view(torch.uint8)
    wire_nW[:, PARAMETER_BYTES:] = _pack(code_nD, bits)


def lowbit_decode(wire_nW: Tensor, bits: int, out_nD: Tensor) -> None:
    """Fill the rows from the wire; there is at least one number. float32, contiguous."""
    head_n, tail_n = wire_nW[:, :PARAMETER_BYTES].contiguous().view(torch.int16).int().unbind(1)
    code_nD = _unpack(wire_nW[:, PARAMETER_BYTES:], out_nD.shape[1], bits)
    low_n, step_n = ((t << 16).view(torch.float32) for t in (head_n, tail_n))
    value_n = (head_n << 16 | (tail_n & 0x7FFF) << 1 | code_nD[:, 0] & 1).view(torch.float32)
    grid_nD = code_nD.float() * step_n[:, None] + low_n[:, None]
    out_nD.copy_(torch.where((tail_n < 0)[:, None], value_n[:, None], grid_nD))


def _rank(bits: Tensor) -> Tensor:
    """Bits of float32 to integers of the same order, NaNs at both ends, and back: it is its own inverse."""
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def _pack(code_nD: Tensor, bits: int) -> Tensor:
    rows, width = code_nD.shape
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(code_nD, (0, -width % per_byte)).view(rows, -1, per_byte)
    return (padded << _shifts(bits, code_nD.device)).sum(2).to(torch.uint8)


def _unpack(code_nC: Tensor, width: int, bits: int) -> Tensor:
    codes: Tensor = code_nC.int()[:, :, None] >> _shifts(bits, code_nC.device) & 2**bits - 1
    return codes.flatten(1).narrow(1, 0, width)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.int32, device=device)
