"""The row-wise kernels: keyed dropout fused with ReLU, its gradient, adding rows, and layer norm.

A norm's program has several whole rows, which each pass reads once. The backward pass reads the rows anyway and
recomputes mean and deviation, so only x is kept.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import draws, jit, row_keys


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


@jit
def _normalised(values: tl.tensor, inside: tl.tensor, EPS: tl.constexpr, WIDTH: tl.constexpr) -> Any:
    """(x - mean) / deviation of every row, zero outside, and 1 / deviation."""
    centred = tl.where(inside, values - (tl.sum(values, 1) / WIDTH)[:, None], 0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + EPS)[:, None]
    return centred * inverse, inverse


@jit
def layer_norm(
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor, num_rows: tl.tensor,
    EPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[i] = (x[i] - mean) / sqrt(variance + eps) * weight + bias"""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    at = rows[:, None] * WIDTH + columns[None, :]
    values = tl.load(x + at, mask=inside, other=0).to(SUM)
    normal, _ = _normalised(values, inside, EPS, WIDTH)
    scale = tl.load(weight + columns, mask=columns < WIDTH, other=0).to(SUM)
    shift = tl.load(bias + columns, mask=columns < WIDTH, other=0).to(SUM)
    tl.store(out + at, (normal * scale[None, :] + shift[None, :]).to(out.dtype.element_ty), mask=inside)


@jit
def layer_norm_grad(
    grad: tl.tensor, x: tl.tensor, weight: tl.tensor, out: tl.tensor, partial: tl.tensor,
    num_rows: tl.tensor, EPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[i] = (g - mean(g) - n[i] mean(g n[i])) / deviation,  g = weight grad[i],  n[i] the normalised row

    A program has the tiles of ROWS rows whose number equals its own modulo the number of programs, and writes its sums
    of grad n and of grad to partial[program].
    """
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    counts = columns < WIDTH
    scale = tl.load(weight + columns, mask=counts, other=0).to(SUM)
    weight_sum = tl.zeros([ROWS, COLUMNS], SUM)
    bias_sum = tl.zeros([ROWS, COLUMNS], SUM)
    for tile in range(program, tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        inside = (rows < num_rows)[:, None] & counts[None, :]
        at = rows[:, None] * WIDTH + columns[None, :]
        values = tl.load(x + at, mask=inside, other=0).to(SUM)
        slope = tl.load(grad + at, mask=inside, other=0).to(SUM)
        normal, inverse = _normalised(values, inside, EPS, WIDTH)
        weight_sum += slope * normal
        bias_sum += slope
        slope *= scale[None, :]
        mean = (tl.sum(slope, 1) / WIDTH)[:, None]
        lean = (tl.sum(slope * normal, 1) / WIDTH)[:, None]
        tl.store(out + at, ((slope - mean - normal * lean) * inverse).to(out.dtype.element_ty), mask=inside)
    mine = partial + program * 2 * WIDTH + columns
    tl.store(mine, tl.sum(weight_sum, 0), mask=counts)
    tl.store(mine + WIDTH, tl.sum(bias_sum, 0), mask=counts)
