"""The draws of hashing.py in Triton: the same bits for the same (key, row id, column)."""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import jit

COLUMN = tl.constexpr(0x9E3779B9)


@jit
def _mix64(z: tl.tensor) -> Any:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@jit
def row_keys(key: tl.tensor, ids: tl.tensor) -> Any:
    """Return the 64 bits of each row; `key` is from hashing.mixed_key, as a signed number."""
    return _mix64(_mix64(ids.to(tl.uint64) + 0x9E3779B97F4A7C15) ^ key.to(tl.uint64))


@jit
def draws(row_keys: tl.tensor, columns: tl.tensor) -> Any:
    """Return the 32 bits of each (row, column), broadcast together."""
    return draws_from(starts(row_keys, columns), row_keys)


@jit
def starts(row_keys: tl.tensor, columns: tl.tensor) -> Any:
    """Return the start of each draw; the next column adds COLUMN."""
    return columns.to(tl.uint32) * COLUMN + row_keys.to(tl.uint32)


@jit
def draws_from(starts: tl.tensor, row_keys: tl.tensor) -> Any:
    h = (starts ^ (starts >> 16)) * 0x7FEB352D
    h = h ^ (row_keys >> 32).to(tl.uint32)
    h = (h ^ (h >> 15)) * 0x846CA68B
    return h ^ (h >> 16)
