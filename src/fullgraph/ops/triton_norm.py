"""Layer norm in Triton: several whole rows per program, read once in each pass.

The backward pass reads the rows anyway and recomputes mean and deviation, so only x is kept.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import jit


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
