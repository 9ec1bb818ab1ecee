"""Rows of float32 as codes of 1, 2, 4 or 8 bits: the wire format, and its meaning in torch.

A row on the wire is a word of 32 bits and the codes, column 0 in the lowest bits of the first byte;  little-endian.

    word = power (8 bits) | far (2) | multiple (22 - size, signed) | fraction (size),   size = 8, 5, 3, 1 for far = 0..3
    step = 2^(power - 127) (1 + fraction / 2^size)
    low  = 2^(power - 127) 2^lift multiple / 2^size,   2^lift = 2^b - 1 rounded to a power of two
    code = min(floor((x - low) / step + u), 2^b - 1),  u = draw(key, row, column) / 2^32 cut to 24 bits

2^lift steps are about a row's span, so the rounding error of low is a fixed share of the span. If the row is far from
zero, the multiple needs more digits; it takes them from the fraction. Up to about 2^4 spans from zero low and step are
exact to 1/256 of the span, up to 2^10 to 1/32, up to 2^14 to 1/8. Beyond 2^18 the step grows until low fits.

low is at most min x; step is (max x - low) / (2^b - 1) rounded up, at least 2^-126. Both are rounded before the codes
are drawn, so the mean of `low + code * step` is x. The power 255 marks a row whose values are all the same float32: the
word has the lower 24 of its bits, the first byte of codes the upper 8. A row with a NaN, with an infinity and other
numbers, or with a range beyond float32 is marked, with the value NaN.
loops_lowbit.py computes the same with numba; a test compares all bytes.
"""

import torch
from torch import Tensor

from fullgraph.ops.hashing import draws, row_keys

# Shapes: n rows, D numbers per row, W bytes per row on the wire, C of them codes.

PARAMETER_BYTES = 4
NAN_BITS, INF_BITS = 0x7FC00000, 0x7F800000
MINUS_INF_RANK = -0x7F800001  # position of -inf in the order of `_rank`
MARK = -0x1000000  # the power 255
SIZES = 0x1358  # hexadecimal digits from the right: size for far = 0, 1, 2, 3


def row_bytes(width: int, bits: int) -> int:
    """W = ceil(b D / 8) + 4."""
    return (bits * width + 7) // 8 + PARAMETER_BYTES


def lowbit_encode(x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None:
    """Encode rows into the wire. The rows are float32 and contiguous, with at least one number."""
    rows, width = x_nD.shape
    top = 2**bits - 1
    rank_nD = _rank(x_nD.view(torch.int32))
    first_n, last_n = rank_nD.amin(1), rank_nD.amax(1)
    min_n, max_n = (_rank(r).view(torch.float32) for r in (first_n, last_n))
    word_n, low_n, step_n = _parameters(min_n, max_n, bits)

    same_n = min_n == max_n
    finite_n = (first_n > MINUS_INF_RANK) & (last_n < INF_BITS) & torch.isfinite(low_n + step_n * top)
    marked_n = same_n | ~finite_n
    value_n = torch.where(same_n, min_n.view(torch.int32), NAN_BITS)

    a_n, b_n = row_keys(key, torch.arange(rows, device=x_nD.device))
    columns_D = torch.arange(width, device=x_nD.device)
    u_nD = (draws(a_n[:, None], b_n[:, None], columns_D) >> 8).float() * 2.0**-24
    at_nD = (x_nD - low_n[:, None]) * (1 / step_n)[:, None] + u_nD
    code_nC = _pack(torch.where(marked_n[:, None], 0, at_nD).to(torch.int32).clamp_(max=top), bits)
    code_nC[:, 0] = torch.where(marked_n, value_n >> 24, code_nC[:, 0])
    word_n = torch.where(marked_n, value_n | MARK, word_n)
    wire_nW[:, :PARAMETER_BYTES] = word_n[:, None].view(torch.uint8)
    wire_nW[:, PARAMETER_BYTES:] = code_nC


def lowbit_decode(wire_nW: Tensor, bits: int, out_nD: Tensor) -> None:
    """Decode the wire into rows. The rows are float32 and contiguous, with at least one number."""
    word_n = wire_nW[:, :PARAMETER_BYTES].clone(memory_format=torch.contiguous_format).view(torch.int32)[:, 0]
    code_nD = _unpack(wire_nW[:, PARAMETER_BYTES:], out_nD.shape[1], bits)
    power_n, size_n = word_n >> 24 & 0xFF, _size(word_n >> 22 & 3)
    low_n = _low(word_n << 10 >> 10 + size_n, power_n, size_n, bits)
    step_n = (power_n << 23 | word_n << 23 - size_n & 0x7FFFFF).view(torch.float32)
    grid_nD = code_nD.float() * step_n[:, None] + low_n[:, None]
    value_n = (wire_nW[:, PARAMETER_BYTES].int() << 24 | word_n & ~MARK).view(torch.float32)
    out_nD.copy_(torch.where((power_n == 0xFF)[:, None], value_n[:, None], grid_nD))


def lowbit_spans(wire_nW: Tensor, bits: int) -> Tensor:
    """Return the span of every row's grid, step (2^b - 1), from the wire [n]; 0 for a marked row."""
    word_n = wire_nW[:, :PARAMETER_BYTES].clone(memory_format=torch.contiguous_format).view(torch.int32)[:, 0]
    power_n, size_n = word_n >> 24 & 0xFF, _size(word_n >> 22 & 3)
    step_n = (power_n << 23 | word_n << 23 - size_n & 0x7FFFFF).view(torch.float32)
    return torch.where(power_n == 0xFF, 0.0, step_n * (2**bits - 1))


def _parameters(min_n: Tensor, max_n: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """(word, low, step) of rows that are not marked."""
    top, lift = 2**bits - 1, _lift(bits)
    min_bits_n, share_n = min_n.view(torch.int32), ((max_n - min_n) * (1 / top)).view(torch.int32)
    exponent_n = min_bits_n >> 23 & 0xFF
    ahead_n = exponent_n - lift - (share_n >> 23)
    far_n = (ahead_n > 4).int() + (ahead_n > 10).int() + (ahead_n > 14).int()
    size_n = _size(far_n)
    # Rounding adds up to 4/3 + 1 fractions to the step. Its power includes them, so it is known before low.
    power_n = torch.maximum(share_n + (5 << 22 - size_n) >> 23, exponent_n - lift - 18).clamp_(min=1)

    digits_n = min_bits_n & 0x7FFFFF | (exponent_n > 0).int() << 23
    shift_n = power_n + lift - size_n - exponent_n.clamp(min=1) + 23
    multiple_n = torch.where(min_bits_n < 0, -digits_n, digits_n) >> shift_n.clamp_(max=31)
    low_n = _low(multiple_n, power_n, size_n, bits)

    rest_n = (1 << 23 - size_n) - 1
    step_bits_n = torch.maximum(((max_n - low_n) / top).view(torch.int32) + rest_n & ~rest_n, power_n << 23)
    fraction_n = (step_bits_n & 0x7FFFFF) >> 23 - size_n
    word_n = power_n << 24 | far_n << 22 | multiple_n << size_n & 0x3FFFFF | fraction_n
    return word_n, low_n, step_bits_n.view(torch.float32)


def _low(multiple_n: Tensor, power_n: Tensor, size_n: Tensor, bits: int) -> Tensor:
    unit_n = _two_to(power_n) * _two_to(127 + _lift(bits) - size_n)
    return multiple_n.float() * unit_n


def _two_to(power_n: Tensor) -> Tensor:
    """2^(power - 127)."""
    return (power_n << 23).view(torch.float32)


def _size(far_n: Tensor) -> Tensor:
    return SIZES >> 4 * far_n & 15


def _lift(bits: int) -> int:
    return bits if bits > 1 else 0


def _rank(bits: Tensor) -> Tensor:
    """Map bits of float32 to integers of the same order, with NaNs at both ends; the function is its own inverse."""
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
