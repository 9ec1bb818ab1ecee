"""The low-bit rows of lowbit.py in Triton, compiled without fused multiply-adds: the bytes are the reference's."""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import COLUMN, draws_from, jit, row_keys, starts


@jit
def _rank(bits: tl.tensor) -> Any:
    """Map bits of float32 to integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _low(multiple: tl.tensor, power: tl.tensor, size: tl.tensor, BITS: tl.constexpr) -> Any:
    LIFT: tl.constexpr = BITS if BITS > 1 else 0
    unit = (power << 23).to(tl.float32, bitcast=True) * ((127 + LIFT - size) << 23).to(tl.float32, bitcast=True)
    return multiple.to(tl.float32) * unit


@jit
def _parameters(min_bits: tl.tensor, high: tl.tensor, BITS: tl.constexpr) -> Any:
    """(word, low, step) of rows that are not marked"""
    TOP: tl.constexpr = 2**BITS - 1
    LIFT: tl.constexpr = BITS if BITS > 1 else 0
    share = ((high - min_bits.to(tl.float32, bitcast=True)) * (1 / TOP)).to(tl.int32, bitcast=True)
    exponent = (min_bits >> 23) & 0xFF
    ahead = exponent - LIFT - (share >> 23)
    far = (ahead > 4).to(tl.int32) + (ahead > 10).to(tl.int32) + (ahead > 14).to(tl.int32)
    size = (0x1358 >> (4 * far)) & 15
    power = tl.maximum(tl.maximum((share + (5 << (22 - size))) >> 23, exponent - LIFT - 18), 1)
    digits = (min_bits & 0x7FFFFF) | tl.where(exponent > 0, 0x800000, 0)
    shift = tl.minimum(power + LIFT - size - tl.maximum(exponent, 1) + 23, 31)
    multiple = tl.where(min_bits < 0, -digits, digits) >> shift
    low = _low(multiple, power, size, BITS)
    rest = (1 << (23 - size)) - 1
    exact = high - low
    if TOP > 1:
        exact = tl.div_rn(exact, tl.full(exact.shape, TOP, tl.float32))
    step_bits = tl.maximum((exact.to(tl.int32, bitcast=True) + rest) & ~rest, power << 23)
    fraction = (step_bits & 0x7FFFFF) >> (23 - size)
    word = (power << 24) | (far << 22) | ((multiple << size) & 0x3FFFFF) | fraction
    return word, low, step_bits.to(tl.float32, bitcast=True)


@jit
def _least(a: tl.tensor, b: tl.tensor) -> Any:
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def _most(a: tl.tensor, b: tl.tensor) -> Any:
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def encode(
    x: tl.tensor, wire: tl.tensor, key: tl.tensor, num_rows: tl.tensor, WIDTH: tl.constexpr,
    BITS: tl.constexpr, ROWS: tl.constexpr, SLICE: tl.constexpr,
) -> None:  # fmt: skip
    """wire[k] = the row x[k]

    A row is kept in slices, so that few threads share it; each slice recomputes the values that belong to the whole
    row.
    """
    TOP: tl.constexpr = 2**BITS - 1
    PER_BYTE: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = (WIDTH * BITS + 7) // 8
    k = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    present = k < num_rows
    lows, highs = tl.full([ROWS, SLICE], float("inf"), tl.float32), tl.full([ROWS, SLICE], float("-inf"), tl.float32)
    values = ()
    for first in tl.static_range(0, WIDTH, SLICE):
        columns = (first + tl.arange(0, SLICE))[None, :]
        inside = present[:, None] if first + SLICE <= WIDTH else present[:, None] & (columns < WIDTH)
        value = tl.load(x + (k * WIDTH)[:, None] + columns, mask=inside, other=0).to(tl.float32)
        if first + SLICE <= WIDTH:
            lows, highs = _least(lows, value), _most(highs, value)
        else:
            lows = _least(lows, tl.where(columns < WIDTH, value, float("inf")))
            highs = _most(highs, tl.where(columns < WIDTH, value, float("-inf")))
        values += (value,)  # type: ignore[assignment]
    least = tl.min(_rank(lows.to(tl.int32, bitcast=True)), 1)
    most = tl.max(_rank(highs.to(tl.int32, bitcast=True)), 1)
    min_bits = _rank(least)
    high = _rank(most).to(tl.float32, bitcast=True)
    word, low, step = _parameters(min_bits, high, BITS)

    same = min_bits.to(tl.float32, bitcast=True) == high
    end_bits = (low + step * TOP).to(tl.int32, bitcast=True)
    finite = (least > -0x7F800001) & (most < 0x7F800000) & ((end_bits & 0x7FFFFFFF) < 0x7F800000)
    marked = same | (finite == 0)
    constant = tl.where(same, min_bits, 0x7FC00000)
    inverse = tl.where(marked, 0.0, tl.div_rn(tl.full([ROWS], 1.0, tl.float32), step))
    keys = row_keys(key, k)
    line = wire + k * (BYTES + 4)
    begin = starts(keys[:, None], tl.arange(0, SLICE)[None, :])
    shifts = (tl.arange(0, SLICE) % PER_BYTE * BITS)[None, :]
    ones = 1 << shifts
    for first in tl.static_range(0, WIDTH, SLICE):
        columns = (first + tl.arange(0, SLICE))[None, :]
        draws = draws_from(begin + first * COLUMN % 2**32, keys[:, None])
        u = (draws >> 8).to(tl.int32).to(tl.float32)
        place = tl.fma(u, 2.0**-24, (values[first // SLICE] - low[:, None]) * inverse[:, None])
        # In a marked row these values are below 1 or NaN; codes are 0 there, and outside the row.
        if TOP == 1:
            codes = tl.where(place >= 1, ones, 0)
        else:
            codes = tl.minimum(tl.where(place >= 1, place, 0).to(tl.int32), TOP) << shifts
        if first + SLICE > WIDTH:
            codes = tl.where(columns < WIDTH, codes, 0)
        packed = tl.sum(tl.reshape(codes, [ROWS, SLICE // PER_BYTE, PER_BYTE]), 2)
        places = (first // PER_BYTE + tl.arange(0, SLICE // PER_BYTE))[None, :]
        if first == 0:
            packed |= tl.where(places == 0, tl.where(marked, constant >> 24, 0)[:, None], 0)
        tl.store(line[:, None] + 4 + places, packed.to(tl.uint8), mask=present[:, None] & (places < BYTES))
    word = tl.where(marked, constant | -0x1000000, word)
    for byte in tl.static_range(4):
        tl.store(line + byte, (word >> 8 * byte).to(tl.uint8), mask=present)


@jit
def decode(
    wire: tl.tensor, out: tl.tensor, num_rows: tl.tensor, WIDTH: tl.constexpr,
    BITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """out[k] = low_k + step_k code[k]"""
    BYTES: tl.constexpr = (WIDTH * BITS + 7) // 8
    k = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    present = k < num_rows
    inside = present[:, None] & (columns < WIDTH)[None, :]
    line = wire + k * (BYTES + 4)
    word = tl.load(line, mask=present, other=0).to(tl.int32)
    for place in tl.static_range(1, 4):
        word |= tl.load(line + place, mask=present, other=0).to(tl.int32) << 8 * place
    byte = tl.load(line[:, None] + 4 + (columns * BITS // 8)[None, :], mask=inside, other=0).to(tl.int32)
    codes = (byte >> (columns * BITS % 8)[None, :]) & (2**BITS - 1)
    power, size = (word >> 24) & 0xFF, (0x1358 >> (4 * ((word >> 22) & 3))) & 15
    low = _low((word << 10) >> (10 + size), power, size, BITS)
    step = ((power << 23) | ((word << (23 - size)) & 0x7FFFFF)).to(tl.float32, bitcast=True)
    first = tl.load(line + 4, mask=present, other=0).to(tl.int32)
    constant = ((first << 24) | (word & 0xFFFFFF)).to(tl.float32, bitcast=True)
    value = codes.to(tl.float32) * step[:, None] + low[:, None]
    value = tl.where((power == 0xFF)[:, None], constant[:, None], value).to(out.dtype.element_ty)
    tl.store(out + k[:, None] * WIDTH + columns[None, :], value, mask=inside)
