"""Functions of all Triton kernels: compilation, the rows and arcs of a program, and the draws of hashing.py.

A program of an arc kernel has either one piece of a long row, or `rows_each` whole rows except the long ones. Programs
with pieces come first, so that none of them finishes last. The draws have the same bits as those of hashing.py for the
same (key, row id, column).
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton compiles a separate version for integers that are 1 or multiples of 16; these arguments change between calls.
NEVER_SPECIALISED = {"num_rows", "num_pieces", "rows_each", "chunk", "key", "threshold", "scale_bits"}


def jit(kernel: Callable[..., Any]) -> Any:
    """triton.jit with a type annotation."""
    names = inspect.signature(kernel).parameters
    return triton.jit(kernel, do_not_specialize=[name for name in names if name in NEVER_SPECIALISED])


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *args: Any, **options: Any) -> None:
    """Run a kernel on the device of `like`, unless the grid has no programs."""
    if all(grid):
        with torch.cuda.device_of(like):
            kernel[grid](*args, **options)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which numbers of `dtype` are added: float64 for float64, float32 for all others."""
    return dtype if dtype == torch.float64 else torch.float32


def triton_type(dtype: torch.dtype) -> Any:
    """Return the sum type as a Triton type."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@jit
def rows_of(
    program: tl.tensor, piece_rows: tl.tensor, num_pieces: tl.tensor, rows_each: tl.tensor, num_rows: tl.tensor
) -> Any:
    """Return the rows [first, last) of a program, as int64 because offsets are computed from them."""
    if program < num_pieces:
        first = tl.load(piece_rows + program)
        last = first + 1
    else:
        first = (program - num_pieces) * rows_each
        last = tl.minimum(first + rows_each, num_rows)
    return first.to(tl.int64), last.to(tl.int64)


@jit
def arcs_of(
    row: tl.tensor,
    program: tl.tensor,
    indptr: tl.tensor,
    piece_places: tl.tensor,
    num_pieces: tl.tensor,
    chunk: tl.tensor,
) -> Any:
    """Return the first arc (int64) and the number of arcs (int32) of `row`: -1 for a long row."""
    start = tl.load(indptr + row)
    count = tl.load(indptr + row + 1) - start
    if program < num_pieces:
        skipped = tl.load(piece_places + program).to(tl.int64) * chunk
        start += skipped
        count = tl.minimum(count - skipped, chunk)
    else:
        count = tl.where(count > chunk, -1, count)
    return start, count.to(tl.int32)


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
