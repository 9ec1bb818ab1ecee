"""The counter-based draws of dropout: 32 bits that depend only on (key, row id, column).

    row(key, id) = mix64(mix64(id + g) ^ mix64(key + g))               once per row; its two halves are a and b
    draw(c)      = mix32(c * g32 + a), with b added (xor) between the two multiplications

mix64 is the finaliser of SplitMix64, mix32 the low-bias hash of C. Wellons. loops.py has the same functions for numba;
a test compares all bits.
"""

import struct

import torch
from torch import Tensor

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
GOLD32, GOLD64 = 0x9E3779B9, 0x9E3779B97F4A7C15
MIX64 = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def mix64(z: int) -> int:
    """A bijection of 64-bit integers in which every input bit flips about half of the output bits."""
    for shift, factor in MIX64:
        z = (z ^ (z >> shift)) * factor & MASK64
    return z ^ (z >> 31)


def dropout_key(seed: int, step: int, layer: int) -> int:
    """The key of one layer's dropout in one step, below 2**63:  mix(mix(mix(seed) + step) + layer)."""
    key = 0
    for part in (seed, step, layer):
        key = mix64((key + part + GOLD64) & MASK64)
    return key >> 1


def mixed_key(key: int) -> int:
    """Return the key as the draws use it, so that keys that differ by one are as different as any others."""
    return mix64((key + GOLD64) & MASK64)


def threshold(p: float) -> int:
    """Draws below this number are dropped:  P(draw < threshold) = p to 2**-32."""
    return min(round(p * 2**32), MASK32)


def scale_bits(p: float) -> int:
    # 1 / (1 - p) as the 64 bits of a double: Triton would round a Python float to 32 bits.
    bits: int = struct.unpack("<q", struct.pack("<d", 1 / (1 - p)))[0]
    return bits


def row_keys(key: int, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The halves (a, b) of row(key, id) as int64 tensors in [0, 2**32)."""
    z = _mix64(_mix64(ids + signed(GOLD64)) ^ signed(mixed_key(key)))
    return z & MASK32, (z >> 32) & MASK32


def draws(a: Tensor, b: Tensor, columns: Tensor) -> Tensor:
    """Return the draws of (row keys, columns), broadcast together, as int64 in [0, 2**32)."""
    h = (columns * GOLD32 + a) & MASK32
    h = ((h ^ (h >> 16)) * 0x7FEB352D & MASK32) ^ b
    h = (h ^ (h >> 15)) * 0x846CA68B & MASK32
    return h ^ (h >> 16)


def _mix64(z: Tensor) -> Tensor:
    # int64 products wrap like unsigned ones, but the right shift must not copy the sign.
    for shift, factor in MIX64:
        z = (z ^ _shift(z, shift)) * signed(factor)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    mask: int = (1 << (64 - bits)) - 1
    return torch.bitwise_right_shift(z, bits) & mask


def signed(z: int) -> int:
    """Return the same 64 bits as a signed number."""
    return z - 2**64 if z >= 2**63 else z


def pair_ids(first: Tensor, second: Tensor) -> Tensor:
    """Return ids of pairs of non-negative int64 numbers: a hash, since two ids do not fit into one number."""
    return _mix64(_mix64(first + signed(GOLD64)) + second) & (2**63 - 1)
