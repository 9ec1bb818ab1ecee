"""The low-bit rows of lowbit.py in Triton, which may read the rows they encode, or add the ones they decode, by index.

Both must be compiled without fused multiply-adds: the bytes are the reference's.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import jit
from fullgraph.ops.triton_hashing import draws, row_keys


@jit
def _rank(bits: tl.tensor) -> Any:
    """Bits of float32 to integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def encode(
    x: tl.tensor, rows: tl.tensor, wire: tl.tensor, key: tl.tensor, num_rows: tl.tensor, WIDTH: tl.constexpr,
    BITS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """wire[k] = the row x[rows[k]], or x[k] without `rows`; COLUMNS covers a row"""
    TOP: tl.constexpr = 2**BITS - 1
    PER_BYTE: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = (WIDTH * BITS + 7) // 8
    k = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    present = k < num_rows
    sources = k if rows is None else tl.load(rows + k, mask=present, other=0).to(tl.int64)
    at = x + sources[:, None] * WIDTH + columns[None, :]
    if WIDTH == COLUMNS:
        value = tl.load(at, mask=present[:, None], other=0).to(tl.float32)
    else:
        inside = (columns < WIDTH)[None, :]
        value = tl.load(at, mask=present[:, None] & inside, other=0).to(tl.float32)
    if RELU:
        value = tl.where(value <= 0, 0.0, value)
    rank = _rank(value.to(tl.int32, bitcast=True))
    if WIDTH == COLUMNS:
        least, most = tl.min(rank, 1), tl.max(rank, 1)
    else:
        least, most = tl.min(tl.where(inside, rank, 0x7FFFFFFF), 1), tl.max(tl.where(inside, rank, -0x80000000), 1)
    min_bits = _rank(least)
    low_bits = tl.where(min_bits < 0, min_bits + 0xFFFF, min_bits) & -0x10000
    low, high = low_bits.to(tl.float32, bitcast=True), _rank(most).to(tl.float32, bitcast=True)
    share = high - low
    if TOP > 1:
        share = tl.div_rn(share, tl.full([ROWS], TOP, tl.float32))
    step16 = tl.maximum((share.to(tl.int32, bitcast=True) + 0xFFFF) >> 16, 0x0080)
    step = (step16 << 16).to(tl.float32, bitcast=True)

    same = min_bits.to(tl.float32, bitcast=True) == high
    end_bits = (low + step * TOP).to(tl.int32, bitcast=True)
    finite = (least > -0x7F800001) & (most < 0x7F800000) & ((end_bits & 0x7FFFFFFF) < 0x7F800000)
    marked = same | (finite == 0)
    constant = tl.where(same, min_bits, 0x7FC00000)

    u = (draws(row_keys(key, k)[:, None], columns[None, :]) >> 8).to(tl.int32).to(tl.float32) * (2.0**-24)
    place = (value - low[:, None]) * tl.div_rn(tl.full([ROWS], 1.0, tl.float32), step)[:, None] + u
    # Outside of the row, and in a marked row but for the first, codes are 0.
    place = tl.where(marked[:, None], 0, place)
    if WIDTH != COLUMNS:
        place = tl.where(inside, place, 0)
    if TOP == 1:
        codes = (place >= 1).to(tl.int32)
    else:
        codes = tl.minimum(place.to(tl.int32), TOP)
    codes |= tl.where(columns[None, :] == 0, tl.where(marked, constant & 1, 0)[:, None], 0)

    shifts = (tl.arange(0, PER_BYTE) * BITS)[None, None, :]
    packed = tl.sum(tl.reshape(codes, [ROWS, COLUMNS // PER_BYTE, PER_BYTE]) << shifts, 2)
    line = wire + k * (BYTES + 4)
    places = tl.arange(0, COLUMNS // PER_BYTE)
    fits = present[:, None] & (places < BYTES)[None, :]
    tl.store(line[:, None] + 4 + places[None, :], packed.to(tl.uint8), mask=fits)
    head = tl.where(marked, constant, low_bits) >> 16
    tail = tl.where(marked, ((constant >> 1) & 0x7FFF) | 0x8000, step16)
    tl.store(line, head.to(tl.uint8), mask=present)
    tl.store(line + 1, (head >> 8).to(tl.uint8), mask=present)
    tl.store(line + 2, tail.to(tl.uint8), mask=present)
    tl.store(line + 3, (tail >> 8).to(tl.uint8), mask=present)


@jit
def decode(
    wire: tl.tensor, rows: tl.tensor, out: tl.tensor, num_rows: tl.tensor, WIDTH: tl.constexpr,
    BITS: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[rows[k]] = (ADD ? out[rows[k]] : 0) + low_k + step_k code[k], or out[k] without `rows`"""
    BYTES: tl.constexpr = (WIDTH * BITS + 7) // 8
    k = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    present = k < num_rows
    inside = present[:, None] & (columns < WIDTH)[None, :]
    line = wire + k * (BYTES + 4)
    head = tl.load(line, mask=present, other=0).to(tl.int32)
    head |= tl.load(line + 1, mask=present, other=0).to(tl.int32) << 8
    tail = tl.load(line + 2, mask=present, other=0).to(tl.int32)
    tail |= tl.load(line + 3, mask=present, other=0).to(tl.int32) << 8
    byte = tl.load(line[:, None] + 4 + (columns * BITS // 8)[None, :], mask=inside, other=0).to(tl.int32)
    codes = (byte >> (columns * BITS % 8)[None, :]) & (2**BITS - 1)
    low, step = (head << 16).to(tl.float32, bitcast=True), (tail << 16).to(tl.float32, bitcast=True)
    last_bit = tl.load(line + 4, mask=present, other=0).to(tl.int32) & 1
    constant = ((head << 16) | ((tail & 0x7FFF) << 1) | last_bit).to(tl.float32, bitcast=True)
    value = codes.to(tl.float32) * step[:, None] + low[:, None]
    value = tl.where((tail >= 0x8000)[:, None], constant[:, None], value).to(out.dtype.element_ty)
    targets = k if rows is None else tl.load(rows + k, mask=present, other=0).to(tl.int64)
    at = out + targets[:, None] * WIDTH + columns[None, :]
    if ADD:
        value = (tl.load(at, mask=inside, other=0).to(SUM) + value.to(SUM)).to(out.dtype.element_ty)
    tl.store(at, value, mask=inside)
