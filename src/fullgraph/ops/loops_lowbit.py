"""The numba loops of low-bit rows; lowbit.py describes the format.

No fused multiply-add and no reordering: sender and reference must agree in every bit.
Each number of bits has a separate loop, because LLVM packs many bytes at once only if shifts are constants.
"""

from typing import Any

import numpy as np

from fullgraph.compiled import Array, compiled

ABS = np.int32(0x7FFFFFFF)
NAN_BITS, INF_BITS, MINUS_INF_RANK = np.int32(0x7FC00000), np.int32(0x7F800000), np.int32(-0x7F800001)
MARK, DIGITS, SIZES = np.int32(-0x1000000), np.int32(0x7FFFFF), 0x1358
PACK_1 = np.uint64(0x0102040810204080)  # moves the lowest bit of byte j to bit 56 + j

_jit = compiled(error_model="numpy")


@_jit
def _rank(bits: np.int32) -> np.int32:
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & ABS))


@_jit
def _float(bits: int | np.int32) -> np.float32:
    return np.int32(bits).view(np.float32)


@_jit
def _bits(value: np.float32) -> Any:
    return np.float32(value).view(np.int32)


@_jit
def _draw(a: np.uint32, b: np.uint32, column: int) -> np.uint32:
    # A copy of the one in loops.py: numba's cache detects changes only in the file that contains a loop.
    h = np.uint32(np.uint32(np.uint32(column) * np.uint32(0x9E3779B9)) + a)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
    h = np.uint32(h ^ b)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(h ^ (h >> np.uint32(16)))


@_jit
def _pack(words: Array, codes: Array, bits: int, out: Array) -> None:
    """out[4:] = the packed codes; `words` are the same bytes, and zero after the last code"""
    if bits == 8:
        for k in range(out.size - 4):
            out[4 + k] = codes[k]
    elif bits == 4:
        for k in range(out.size - 4):
            out[4 + k] = codes[2 * k] | np.uint8(codes[2 * k + 1] << 4)
    elif bits == 2:
        for k in range(out.size - 4):
            p0 = codes[4 * k] | np.uint8(codes[4 * k + 1] << 2)
            p1 = np.uint8(codes[4 * k + 2] << 4) | np.uint8(codes[4 * k + 3] << 6)
            out[4 + k] = p0 | p1
    else:
        for k in range(out.size - 4):
            out[4 + k] = np.uint8((words[k] * PACK_1) >> np.uint64(56))


@_jit
def _unpack(row: Array, bits: int, words: Array, codes: Array) -> None:
    """codes = the numbers in row[4:], one per byte; `words` are the same bytes"""
    if bits == 8:
        for k in range(row.size - 4):
            codes[k] = row[4 + k]
    elif bits == 4:
        for k in range(row.size - 4):
            codes[2 * k] = row[4 + k] & 15
            codes[2 * k + 1] = row[4 + k] >> 4
    elif bits == 2:
        for k in range(row.size - 4):
            codes[4 * k] = row[4 + k] & 3
            codes[4 * k + 1] = (row[4 + k] >> 2) & 3
            codes[4 * k + 2] = (row[4 + k] >> 4) & 3
            codes[4 * k + 3] = row[4 + k] >> 6
    else:
        for k in range(row.size - 4):
            v = np.uint64(row[4 + k])
            v = (v | (v << np.uint64(28))) & np.uint64(0x0000000F0000000F)
            v = (v | (v << np.uint64(14))) & np.uint64(0x0003000300030003)
            words[k] = (v | (v << np.uint64(7))) & np.uint64(0x0101010101010101)


@_jit
def _low(multiple: Any, power: Any, size: Any, lift: int) -> np.float32:
    unit = np.float32(_float(power << 23) * _float(127 + lift - size << 23))
    return np.float32(np.float32(multiple) * unit)


@_jit
def _parameters(min_bits: Any, most: np.float32, bits: int) -> tuple[np.int32, np.float32, np.float32]:
    """(word, low, step) of a row that is not marked"""
    lift, top = (bits if bits > 1 else 0), np.float32((1 << bits) - 1)
    share = _bits(np.float32(most - _float(min_bits)) * np.float32(np.float32(1) / top))
    exponent = min_bits >> 23 & 0xFF
    ahead = exponent - lift - (share >> 23)
    far = int(ahead > 4) + int(ahead > 10) + int(ahead > 14)
    size = SIZES >> 4 * far & 15
    power = max((share + (5 << 22 - size)) >> 23, exponent - lift - 18, 1)
    digits = (min_bits & DIGITS) | (1 << 23 if exponent else 0)
    shift = min(power + lift - size - max(exponent, 1) + 23, 31)
    multiple = (-digits if min_bits < 0 else digits) >> shift
    low = _low(multiple, power, size, lift)
    rest = (1 << 23 - size) - 1
    step_bits = max((_bits(np.float32(most - low) / top) + rest) & ~rest, power << 23)
    fraction = (step_bits & DIGITS) >> 23 - size
    word = power << 24 | far << 22 | multiple << size & 0x3FFFFF | fraction
    return np.int32(word), low, _float(step_bits)


@_jit
def encode(x: Array, ranks: Array, row_keys: Array, bits: int, wire: Array, first: int, last: int) -> None:
    """wire[i] = the row x[i]; `ranks` are the bits of x as int32, `row_keys` the two halves of each row's key"""
    width = x.shape[1]
    top, top_f, one = np.int32((1 << bits) - 1), np.float32((1 << bits) - 1), np.float32(1)
    to_unit = np.float32(2.0**-24)
    words = np.zeros((width + 7) // 8, np.uint64)
    codes = words.view(np.uint8)
    for i in range(first, last):
        row, rank, out = x[i], ranks[i], wire[i]
        lo, hi = ABS, np.int32(-0x80000000)
        for c in range(width):
            r = _rank(rank[c])
            lo, hi = min(lo, r), max(hi, r)
        min_bits, most = _rank(lo), _float(_rank(hi))
        word, low, step = _parameters(min_bits, most, bits)
        finite = lo > MINUS_INF_RANK and hi < INF_BITS and np.isfinite(np.float32(low + np.float32(step * top_f)))
        same = _float(min_bits) == most
        if same or not finite:
            value = min_bits if same else NAN_BITS
            word = np.int32(value | MARK)
            out[4:] = 0
            out[4] = np.uint8(value >> 24)
        else:
            inverse = np.float32(one / step)
            a, b = row_keys[i, 0], row_keys[i, 1]
            for c in range(width):
                u = np.float32(np.float32(np.int32(_draw(a, b, c) >> np.uint32(8))) * to_unit)
                at = np.float32(np.float32(np.float32(row[c] - low) * inverse) + u)
                codes[c] = np.uint8(min(np.int32(at), top))
            _pack(words, codes, bits, out)
        for k in range(4):
            out[k] = np.uint8(word >> 8 * k)


@_jit
def decode(wire: Array, bits: int, out: Array, first: int, last: int) -> None:
    """out[i] = low_i + step_i code[i], or the one value of a marked row"""
    width, lift = out.shape[1], bits if bits > 1 else 0
    words = np.zeros((width + 7) // 8, np.uint64)
    codes = words.view(np.uint8)
    for i in range(first, last):
        row, to = wire[i], out[i]
        word, power = np.int32(row[0]) | np.int32(row[1]) << 8 | np.int32(row[2]) << 16, np.int32(row[3])
        if power == 0xFF:
            to[:] = _float(np.int32(row[4]) << 24 | word)
            continue
        size = SIZES >> 4 * (word >> 22) & 15
        low = _low(np.int32(word << 10) >> 10 + size, power, size, lift)
        step = _float(power << 23 | word << 23 - size & DIGITS)
        _unpack(row, bits, words, codes)
        for c in range(width):
            to[c] = np.float32(np.float32(codes[c]) * step) + low
