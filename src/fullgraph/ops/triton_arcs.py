"""The kernels with one number per (arc, head): scores, softmax over each row and its gradient, dots and dropout.

Fused attention (triton_attention.py) uses only `softmax_sums` and `merge_sums` of this file.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import arcs_of, draws, jit, row_keys, rows_of


@jit
def leaky(z: tl.tensor, SLOPE: tl.constexpr) -> Any:
    return tl.where(z > 0, z, z * SLOPE)


@jit
def above(value: tl.tensor) -> Any:
    """Return a row's maximum for shifting scores; 0 without arcs, because -inf minus -inf is NaN."""
    return tl.where(value == float("-inf"), 0, value)


@jit
def softmax_sums(
    indptr: tl.tensor, indices: tl.tensor, row_scores: tl.tensor, col_scores: tl.tensor, scores: tl.tensor,
    top: tl.tensor, total: tl.tensor, piece_top: tl.tensor, piece_total: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SLOPE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, ARCS: tl.constexpr,
    SUM: tl.constexpr,
) -> None:  # fmt: skip
    """top[i, h] = max_e s[e, h],  total[i, h] = sum_e exp(s[e, h] - top[i, h]),  in one pass over the arcs into i

    s is `scores`, or LeakyReLU(row_scores[i] + col_scores[j_e]) without them.
    """
    program = tl.program_id(0)
    heads, lanes = tl.arange(0, BLOCK), tl.arange(0, ARCS)
    inside = heads < HEADS
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        highest = tl.full([ARCS, BLOCK], float("-inf"), SUM)
        sums = tl.zeros([ARCS, BLOCK], SUM)
        if scores is None:
            own = tl.load(row_scores + row * HEADS + heads, mask=inside, other=0).to(SUM)
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            valid = mine[:, None] & inside[None, :]
            if scores is None:
                sources = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
                other = tl.load(col_scores + sources[:, None] * HEADS + heads[None, :], mask=valid, other=0).to(SUM)
                score = leaky(own[None, :] + other, SLOPE)
            else:
                score = tl.load(scores + arcs[:, None] * HEADS + heads[None, :], mask=valid, other=0).to(SUM)
            score = tl.where(valid, score, float("-inf"))
            higher = tl.maximum(highest, score)
            sums = sums * tl.exp(highest - above(higher)) + tl.exp(score - above(higher))
            highest = higher
        best = tl.max(highest, 0)
        result = tl.sum(sums * tl.exp(highest - above(best)[None, :]), 0)
        if program < num_pieces:
            tl.store(piece_top + program * HEADS + heads, best, mask=inside)
            tl.store(piece_total + program * HEADS + heads, result, mask=inside)
        else:
            kept = inside & (count >= 0)
            tl.store(top + row * HEADS + heads, best, mask=kept)
            tl.store(total + row * HEADS + heads, result, mask=kept)


@jit
def merge_sums(
    piece_top: tl.tensor, piece_total: tl.tensor, first: tl.tensor, rows: tl.tensor, top: tl.tensor,
    total: tl.tensor, HEADS: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """Combine (top, total) of each long row's pieces."""
    k = tl.program_id(0)
    heads, lanes = tl.arange(0, BLOCK), tl.arange(0, PIECES)
    begin, stop = tl.load(first + k), tl.load(first + k + 1)
    highest = tl.full([PIECES, BLOCK], float("-inf"), SUM)
    sums = tl.zeros([PIECES, BLOCK], SUM)
    for piece in range(begin, stop, PIECES):
        at = (piece + lanes)[:, None] * HEADS + heads[None, :]
        valid = (piece + lanes < stop)[:, None] & (heads < HEADS)[None, :]
        other = tl.load(piece_top + at, mask=valid, other=float("-inf"))
        higher = tl.maximum(highest, other)
        shift = above(higher)
        sums = sums * tl.exp(highest - shift) + tl.load(piece_total + at, mask=valid, other=0) * tl.exp(other - shift)
        highest = higher
    best = tl.max(highest, 0)
    result = tl.sum(sums * tl.exp(highest - above(best)[None, :]), 0)
    at = tl.load(rows + k).to(tl.int64) * HEADS + heads
    tl.store(top + at, best, mask=heads < HEADS)
    tl.store(total + at, result, mask=heads < HEADS)


@jit
def arc_map(
    indptr: tl.tensor, indices: tl.tensor, first_values: tl.tensor, second_values: tl.tensor, row_first: tl.tensor,
    row_second: tl.tensor, out: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, KIND: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, ARCS: tl.constexpr,
    SUM: tl.constexpr,
) -> None:  # fmt: skip
    """Compute one number per (arc, head) from numbers of the arc and of its row:

    add           row_first[i] + first_values[j_e]
    softmax       exp(first_values[e] - row_first[i]) / row_second[i]
    softmax_grad  first_values[e] (second_values[e] - row_first[i])
    """
    program = tl.program_id(0)
    heads, lanes = tl.arange(0, BLOCK), tl.arange(0, ARCS)
    inside = heads < HEADS
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        own = tl.load(row_first + row * HEADS + heads, mask=inside, other=0).to(SUM)[None, :]
        if KIND == "softmax":
            norm = tl.load(row_second + row * HEADS + heads, mask=inside, other=1).to(SUM)[None, :]
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            valid = mine[:, None] & inside[None, :]
            at = arcs[:, None] * HEADS + heads[None, :]
            if KIND == "add":
                sources = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
                other = first_values + sources[:, None] * HEADS + heads[None, :]
                result = own + tl.load(other, mask=valid, other=0).to(SUM)
            elif KIND == "softmax":
                result = tl.exp(tl.load(first_values + at, mask=valid, other=float("-inf")).to(SUM) - own) / norm
            else:
                grad = tl.load(second_values + at, mask=valid, other=0).to(SUM)
                result = tl.load(first_values + at, mask=valid, other=0).to(SUM) * (grad - own)
            tl.store(out + at, result.to(out.dtype.element_ty), mask=valid)


@jit
def arc_dot(
    indptr: tl.tensor, indices: tl.tensor, left: tl.tensor, right: tl.tensor, out: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, HEADS: tl.constexpr, WIDTH: tl.constexpr, ARCS: tl.constexpr, COLUMNS: tl.constexpr,
    SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[e, h] = <left[i_e, h], right[j_e, h]>; COLUMNS covers a head"""
    program, head = tl.program_id(0), tl.program_id(1)
    columns, lanes = tl.arange(0, COLUMNS), tl.arange(0, ARCS)
    inside = columns < WIDTH
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        own = tl.load(left + (row * HEADS + head) * WIDTH + columns, mask=inside, other=0).to(SUM)
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            sources = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
            at = right + (sources * HEADS + head)[:, None] * WIDTH + columns[None, :]
            rows = tl.load(at, mask=mine[:, None] & inside[None, :], other=0).to(SUM)
            result = tl.sum(rows * own[None, :], 1)
            tl.store(out + arcs * HEADS + head, result.to(out.dtype.element_ty), mask=mine)


@jit
def dropout_arcs(
    indptr: tl.tensor, indices: tl.tensor, ids: tl.tensor, values: tl.tensor, out: tl.tensor, key: tl.tensor,
    threshold: tl.tensor, scale_bits: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, ARCS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[e] = scale values[e] where draw(key, ids[i_e], j_e) >= threshold, else 0"""
    program, lanes = tl.program_id(0), tl.arange(0, ARCS)
    scale = scale_bits.to(tl.float64, bitcast=True).to(SUM)
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        row_key = row_keys(key, tl.load(ids + row))
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            drop = draws(row_key, tl.load(indices + arcs, mask=mine, other=0)) < threshold.to(tl.uint32)
            value = tl.load(values + arcs, mask=mine, other=0).to(SUM) * scale
            tl.store(out + arcs, tl.where(drop, 0, value).to(out.dtype.element_ty), mask=mine)
