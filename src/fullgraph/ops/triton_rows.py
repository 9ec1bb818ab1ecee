"""The row-wise kernels: keyed dropout fused with ReLU, its gradient, and adding rows."""

import triton.language as tl

from fullgraph.ops.triton_base import jit
from fullgraph.ops.triton_hashing import draws, row_keys


@jit
def dropout(
    x: tl.tensor, ids: tl.tensor, out: tl.tensor, key: tl.tensor, threshold: tl.tensor, scale_bits: tl.tensor,
    num_rows: tl.tensor, STRIDE: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[i, c] = scale x[i, c] where draw(key, ids[i], c) >= threshold (and x > 0 for ReLU), else 0"""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    value = tl.load(x + rows[:, None] * STRIDE + columns[None, :], mask=inside, other=0).to(SUM)
    keys = row_keys(key, tl.load(ids + rows, mask=rows < num_rows, other=0))
    drop = draws(keys[:, None], columns[None, :]) < threshold.to(tl.uint32)
    if RELU:
        drop = drop | (value <= 0)
    scale = scale_bits.to(tl.float64, bitcast=True).to(SUM)
    at = out + rows[:, None] * WIDTH + columns[None, :]
    tl.store(at, tl.where(drop, 0, value * scale).to(out.dtype.element_ty), mask=inside)


@jit
def relu_dropout_grad(
    grad: tl.tensor, y: tl.tensor, out: tl.tensor, scale_bits: tl.tensor, size: tl.tensor,
    BLOCK: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out = scale grad where y != 0, else 0; flat"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(grad + at, mask=inside, other=0).to(SUM) * scale_bits.to(tl.float64, bitcast=True).to(SUM)
    value = tl.where(tl.load(y + at, mask=inside, other=0) == 0, 0, value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@jit
def add_rows(
    out: tl.tensor, rows: tl.tensor, values: tl.tensor, num_rows: tl.tensor,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[rows[k]] += values[k]; the rows are distinct"""
    k = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (k < num_rows)[:, None] & (columns < WIDTH)[None, :]
    targets = tl.load(rows + k, mask=k < num_rows, other=0).to(tl.int64)
    at = out + targets[:, None] * WIDTH + columns[None, :]
    value = tl.load(values + k[:, None] * WIDTH + columns[None, :], mask=inside, other=0).to(SUM)
    total = tl.load(at, mask=inside, other=0).to(SUM) + value
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)
