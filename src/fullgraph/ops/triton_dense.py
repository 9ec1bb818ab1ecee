"""Dense products of many rows with a small matrix, in Triton, with optional keyed dropout of rows while they are read.

Float32 numbers are multiplied on tensor cores as several products of their leading and trailing bits. The sum has the
precision of float32 arithmetic at several times its speed.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import draws, jit, row_keys


@jit
def _dropped(
    values: tl.tensor, keys: tl.tensor, columns: tl.tensor, threshold: tl.tensor, scale_bits: tl.tensor
) -> Any:
    drop = draws(keys[:, None], columns[None, :]) < threshold.to(tl.uint32)
    scale = scale_bits.to(tl.float64, bitcast=True).to(tl.float32)
    return tl.where(drop, 0, values.to(tl.float32) * scale).to(values.dtype)


@jit
def _leading(values: tl.tensor) -> Any:
    """Return the nearest numbers with as many bits as a tensor core reads from a float32."""
    return ((values.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@jit
def weight_parts(
    weight: tl.tensor, parts: tl.tensor, IN: tl.constexpr, OUT: tl.constexpr,
    STEP_IN: tl.constexpr, STEP_OUT: tl.constexpr, PADDED: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """parts[0, o, c] = weight[c STEP_IN + o STEP_OUT], or its leading bits, with the rest in parts[1]; 0 from IN on"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o, c = at // PADDED, at % PADDED
    value = tl.load(weight + c * STEP_IN + o * STEP_OUT, mask=(c < IN) & (o < OUT), other=0)
    if SPLIT:
        tl.store(parts + OUT * PADDED + at, value - _leading(value), mask=o < OUT)
        value = _leading(value)
    tl.store(parts + at, value, mask=o < OUT)


@jit
def rows_times(
    x: tl.tensor, ids: tl.tensor, weight: tl.tensor, bias: tl.tensor, out: tl.tensor,
    key: tl.tensor, threshold: tl.tensor, scale_bits: tl.tensor, num_rows: tl.tensor,
    IN: tl.constexpr, READ: tl.constexpr, STRIDE: tl.constexpr, OUT: tl.constexpr, PADDED: tl.constexpr,
    DROP: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
) -> None:  # fmt: skip
    """out[i, o] = (out[i, o] +) sum_c drop(x[i, c]) weight[o, c] (+ bias[o]), from the weight's parts

    READ columns are read of each row of x, a multiple of 16 bytes, and IN are used; other numbers may follow the row.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (rows < num_rows)[:, None]
    if DROP:
        keys = row_keys(key, tl.load(ids + rows, mask=rows < num_rows, other=0))
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, IN, DEPTH):
        c = first + tl.arange(0, DEPTH)
        a = tl.load(x + rows[:, None] * STRIDE + c[None, :], mask=there & (c < READ)[None, :], other=0)
        if READ != IN:
            a = tl.where((c < IN)[None, :], a, 0)
        if DROP:
            a = _dropped(a, keys, c, threshold, scale_bits)
        at = weight + columns[None, :] * PADDED + c[:, None]
        b = tl.load(at, mask=(columns < OUT)[None, :], other=0)
        if SPLIT:
            # A tensor core truncates its sums; a single sum over IN would lose a digit.
            high = _leading(a)
            part = tl.dot(a - high, b, input_precision="tf32")
            rest = tl.load(at + OUT * PADDED, mask=(columns < OUT)[None, :], other=0)
            part = tl.dot(high, rest, part, input_precision="tf32")
            total += tl.dot(high, b, part, input_precision="tf32")
        else:
            total = tl.dot(a, b, total)
    if BIAS:
        total += tl.load(bias + columns, mask=columns < OUT, other=0).to(tl.float32)[None, :]
    at = out + rows[:, None] * OUT + columns[None, :]
    inside = there & (columns < OUT)[None, :]
    if ADD:
        total += tl.load(at, mask=inside, other=0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@jit
def rows_against_rows(
    left: tl.tensor, x: tl.tensor, ids: tl.tensor, partial: tl.tensor,
    key: tl.tensor, threshold: tl.tensor, scale_bits: tl.tensor, rows_each: tl.tensor, num_rows: tl.tensor,
    OUT: tl.constexpr, IN: tl.constexpr, READ: tl.constexpr, STRIDE: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
) -> None:  # fmt: skip
    """partial[p, o, c] = sum_i left[i, o] drop(x[i, c]) over the rows [p rows_each, (p + 1) rows_each)"""
    piece = tl.program_id(2).to(tl.int64)
    o = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    last = tl.minimum((piece + 1) * rows_each, num_rows)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(tl.cdiv(rows_each, DEPTH)):
        rows = piece * rows_each + step * DEPTH + tl.arange(0, DEPTH)
        there = (rows < last)[:, None]
        a = tl.load(left + rows[:, None] * OUT + o[None, :], mask=there & (o < OUT)[None, :], other=0)
        b = tl.load(x + rows[:, None] * STRIDE + c[None, :], mask=there & (c < READ)[None, :], other=0)
        if DROP:
            keys = row_keys(key, tl.load(ids + rows, mask=rows < last, other=0))
            b = _dropped(b, keys, c, threshold, scale_bits)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    at = partial + (piece * OUT + o)[:, None] * IN + c[None, :]
    tl.store(at, total, mask=(o < OUT)[:, None] & (c < IN)[None, :])
