"""The dense products of the Triton backend: chooses sizes, allocates results and starts the kernels."""

import torch
from torch import Tensor

from fullgraph.ops import triton_dense
from fullgraph.ops.dense import ALIGNED, Drop
from fullgraph.ops.hashing import mixed_key, scale_bits, signed, threshold
from fullgraph.ops.triton_base import launch
from fullgraph.ops.triton_plan import ceil_div, power_of_two

DENSE_ROWS, DENSE_DEPTH = 64, 32  # rows of a program of a dense product, and columns that it multiplies at once
DENSE_PIECES = 264  # pieces of all rows times tiles of a result: a constant, so that the order of sums is fixed


def rows_times(
    x_nI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out_nO: Tensor, add: bool, drop: Drop | None
) -> None:
    (num_rows, width), out_width = x_nI.shape, out_nO.shape[1]
    columns = max(16, min(128, power_of_two(out_width)))
    split, padded = x_nI.dtype == torch.float32, DENSE_DEPTH * ceil_div(width, DENSE_DEPTH)
    parts, block = weight_IO.new_empty(1 + split, out_width, padded), 1024
    launch(
        triton_dense.weight_parts, (ceil_div(out_width * padded, block),), parts, weight_IO, parts,
        IN=width, OUT=out_width, STEP_IN=weight_IO.stride(0), STEP_OUT=weight_IO.stride(1), PADDED=padded, SPLIT=split,
        BLOCK=block,
    )  # fmt: skip
    launch(
        triton_dense.rows_times, (ceil_div(num_rows, DENSE_ROWS), ceil_div(out_width, columns)), out_nO,
        x_nI, x_nI if drop is None else drop.ids_n, parts, parts if bias_O is None else bias_O, out_nO,
        *_law(drop), num_rows, IN=width, **_reading(x_nI), OUT=out_width, PADDED=padded,
        DROP=drop is not None, BIAS=bias_O is not None, ADD=add, SPLIT=split,
        ROWS=DENSE_ROWS, COLUMNS=columns, DEPTH=DENSE_DEPTH, num_warps=4, num_stages=2 if drop and split else 3,
    )  # fmt: skip


def rows_against_rows(grad_nO: Tensor, x_nI: Tensor, drop: Drop | None) -> Tensor:
    """grad^T drop(x) in float32; pieces of the rows are added in order."""
    (num_rows, width), out_width = x_nI.shape, grad_nO.shape[1]
    most, columns, depth = 256 if x_nI.dtype == torch.bfloat16 else 128, 128, 32
    rows = min(most, max(64, power_of_two(out_width)))
    tiles = ceil_div(out_width, rows), ceil_div(width, columns)
    each = depth * ceil_div(num_rows, depth * max(1, DENSE_PIECES // (tiles[0] * tiles[1])))
    pieces = ceil_div(num_rows, each)
    partial = x_nI.new_empty(pieces, out_width, width, dtype=torch.float32)
    launch(
        triton_dense.rows_against_rows, (*tiles, pieces), partial,
        grad_nO, x_nI, x_nI if drop is None else drop.ids_n, partial, *_law(drop), each, num_rows,
        OUT=out_width, IN=width, **_reading(x_nI), DROP=drop is not None, PRECISION=_six(partial),
        ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=8, num_stages=3,
    )  # fmt: skip
    return partial.sum(0)


def _reading(x_nI: Tensor) -> dict[str, int]:
    """Return the columns to read per row of x: up to the end of its last 16 bytes if x's memory contains them."""
    (n, width), stride = x_nI.shape, x_nI.stride(0)
    step = ALIGNED // x_nI.element_size()
    there = x_nI.untyped_storage().nbytes() // x_nI.element_size() - x_nI.storage_offset() >= n * stride
    wide = -(-width // step) * step
    return {"READ": wide if stride % step == 0 and wide <= stride and there else width, "STRIDE": stride}


def _six(like: Tensor) -> str:
    """Select products of bfloat16 parts for float32 numbers; Triton's interpreter has only three tf32 parts."""
    return "bf16x6" if like.is_cuda else "tf32x3"


def _law(drop: Drop | None) -> tuple[int, int, int]:
    return (0, 0, 0) if drop is None else (signed(mixed_key(drop.key)), threshold(drop.p), scale_bits(drop.p))
