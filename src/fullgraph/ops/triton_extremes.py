"""Maxima over a row's arcs in Triton, and their gradient; sliced by columns as the product is (triton_product.py)."""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import arcs_of, jit, rows_of


@jit
def _raise(
    best: tl.tensor, reached: tl.tensor, x: tl.tensor, indices: tl.tensor, arcs: tl.tensor, mine: tl.tensor,
    written: tl.tensor, WIDTH: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """Update each lane's maximum with these arcs, and count the arcs that reach it; a NaN stays."""
    sources = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
    valid = mine[:, None] & written[None, :]
    rows = tl.load(x[None, :] + sources[:, None] * WIDTH, mask=valid, other=float("-inf")).to(SUM)
    higher = (rows > best) | (rows != rows)
    reached = tl.where(higher, 1.0, reached + tl.where(valid & (rows == best), 1.0, 0.0))
    return tl.where(higher, rows, best), reached


@jit
def _highest(best: tl.tensor, reached: tl.tensor, empty: tl.tensor) -> Any:
    """The maximum over the lanes (0 for a row without arcs), and how many arcs reach it."""
    odd = tl.max(tl.where(best != best, 1, 0), 0) > 0
    top = tl.max(tl.where(best != best, float("-inf"), best), 0)
    count = tl.sum(tl.where(best == top[None, :], reached, 0.0), 0)
    return tl.where(odd, float("nan"), tl.where(empty, 0.0, top)), tl.where(odd, 0.0, count)


@jit
def arc_max(
    indptr: tl.tensor, indices: tl.tensor, x: tl.tensor, out: tl.tensor, reached_by: tl.tensor,
    piece_best: tl.tensor, piece_reached: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, WIDTH: tl.constexpr, ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[i] = max_e x[j_e],  reached_by[i] = how many arcs reach it; those of a piece go to piece_*."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lanes, written = tl.arange(0, ARCS), columns < WIDTH
    x += columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        best = tl.full([ARCS, COLUMNS], float("-inf"), SUM)
        reached = tl.zeros([ARCS, COLUMNS], SUM)
        for k in range(0, count, ARCS):
            best, reached = _raise(best, reached, x, indices, start + k + lanes, k + lanes < count, written, WIDTH, SUM)
        top, reaching = _highest(best, reached, count <= 0)
        if program < num_pieces:
            at = program.to(tl.int64) * WIDTH + columns
            tl.store(piece_best + at, top, mask=written)
            tl.store(piece_reached + at, reaching, mask=written)
        else:
            at, kept = row * WIDTH + columns, written & (count >= 0)
            tl.store(out + at, top.to(out.dtype.element_ty), mask=kept)
            tl.store(reached_by + at, reaching, mask=kept)


@jit
def merge_max(
    piece_best: tl.tensor, piece_reached: tl.tensor, first: tl.tensor, long_rows: tl.tensor, out: tl.tensor,
    reached_by: tl.tensor, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """The long rows' maxima, from their pieces."""
    k = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    written = columns < WIDTH
    best, reached = tl.full([COLUMNS], float("-inf"), SUM), tl.zeros([COLUMNS], SUM)
    for piece in range(tl.load(first + k).to(tl.int64), tl.load(first + k + 1).to(tl.int64)):
        rows = tl.load(piece_best + piece * WIDTH + columns, mask=written, other=0)
        count = tl.load(piece_reached + piece * WIDTH + columns, mask=written, other=0)
        higher = (rows > best) | (rows != rows)
        reached = tl.where(higher, count, reached + tl.where(rows == best, count, 0.0))
        best = tl.where(higher, rows, best)
    at = tl.load(long_rows + k).to(tl.int64) * WIDTH + columns
    tl.store(out + at, best.to(out.dtype.element_ty), mask=written)
    tl.store(reached_by + at, reached, mask=written)


@jit
def arc_max_grad(
    indptr: tl.tensor, indices: tl.tensor, x: tl.tensor, y: tl.tensor, share: tl.tensor, out: tl.tensor,
    partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, WIDTH: tl.constexpr, ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[j] = sum over the transposed arcs of share[i] where x[j] = y[i]; a piece's sum goes to `partial`."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lanes, written = tl.arange(0, ARCS), columns < WIDTH
    y += columns
    share += columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        own = tl.load(x + row * WIDTH + columns, mask=written, other=0).to(SUM)
        total = tl.zeros([ARCS, COLUMNS], SUM)
        for k in range(0, count, ARCS):
            mine = k + lanes < count
            at = tl.load(indices + start + k + lanes, mask=mine, other=0).to(tl.int64)[:, None] * WIDTH
            valid = mine[:, None] & written[None, :]
            best = tl.load(y[None, :] + at, mask=valid, other=float("nan")).to(SUM)
            part = tl.load(share[None, :] + at, mask=valid, other=0).to(SUM)
            total += tl.where(best == own[None, :], part, 0)
        result = tl.sum(total, 0)
        if program < num_pieces:
            tl.store(partial + program.to(tl.int64) * WIDTH + columns, result, mask=written)
        else:
            tl.store(out + row * WIDTH + columns, result.to(out.dtype.element_ty), mask=written & (count >= 0))
