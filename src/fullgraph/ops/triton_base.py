"""What all Triton kernels share: how they are compiled, and which rows and arcs a program has.

A program of an arc kernel either has one piece of a long row (these programs come first, so that none of them is the
last to finish) or `rows_each` whole rows, of which it leaves the long ones out.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton compiles a version of its own for integers that are 1 or multiples of 16; these change from call to call.
NEVER_SPECIALISED = {"num_rows", "num_pieces", "rows_each", "chunk", "key", "threshold", "scale_bits"}


def jit(kernel: Callable[..., Any]) -> Any:
    """triton.jit with a type."""
    names = inspect.signature(kernel).parameters
    return triton.jit(kernel, do_not_specialize=[name for name in names if name in NEVER_SPECIALISED])


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, *args: Any, **options: Any) -> None:
    """Run a kernel on the device of `like`; a grid without programs is left alone."""
    if all(grid):
        with torch.cuda.device_of(like):
            kernel[grid](*args, **options)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of `dtype` are added: float64 for itself, float32 for all others."""
    return dtype if dtype == torch.float64 else torch.float32


def triton_type(dtype: torch.dtype) -> Any:
    """The same as Triton names it."""
    return tl.float64 if dtype == torch.float64 else tl.float32


@jit
def rows_of(
    program: tl.tensor, piece_rows: tl.tensor, num_pieces: tl.tensor, rows_each: tl.tensor, num_rows: tl.tensor
) -> Any:
    """The rows [first, last) of a program, as int64 because offsets are computed from them."""
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
    """Where a program's arcs of `row` begin (int64) and how many there are (int32): -1 for a long row left out."""
    start = tl.load(indptr + row)
    count = tl.load(indptr + row + 1) - start
    if program < num_pieces:
        skipped = tl.load(piece_places + program).to(tl.int64) * chunk
        start += skipped
        count = tl.minimum(count - skipped, chunk)
    else:
        count = tl.where(count > chunk, -1, count)
    return start, count.to(tl.int32)
