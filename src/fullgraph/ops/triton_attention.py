"""Attention in Triton without a number per arc in memory.

z = row[i, h] + col[j, h]  and  alpha = exp(LeakyReLU(z) - top[i, h]) / total[i, h]  are recomputed when needed. The
arcs are read three times: for `top` and `total` (triton_arcs.softmax_sums), for y, and transposed for the gradients.
Write [+] for the part of a sum over the arcs with z > 0, and s for the slope:

    y[i] = sum alpha x[j]                       d x[j] = u[j] = sum alpha dy[i]
    lean[i] = y[+] - (sum alpha)[+] y           d row[i] = (1 - s) <dy[i], lean[i]>
    delta[i] = <dy[i], y[i]>                    d col[j] = <x[j], s u + (1 - s) u[+]> - s v - (1 - s) v[+]
    v[j] = sum alpha delta[i]

so neither gradient of the scores needs another pass over arcs: before the LeakyReLU's slope, the gradients of a row's
scores add to zero. A program computes one head; COLUMNS covers it.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_arcs import leaky
from fullgraph.ops.triton_base import arcs_of, jit, rows_of


@jit
def _gather(x: tl.tensor, sources: tl.tensor, mine: tl.tensor, inside: tl.tensor, SUM: tl.constexpr) -> Any:
    """Load the tile x[sources]; `mine` and `inside` are None if no mask is needed. `x` points to a head in row 0."""
    at = x[None, :] + sources[:, None]
    if mine is None:
        return tl.load(at, mask=inside).to(SUM)
    elif inside is None:
        return tl.load(at, mask=mine[:, None], other=0).to(SUM)
    else:
        return tl.load(at, mask=mine[:, None] & inside, other=0).to(SUM)


@jit
def _weigh(
    indices: tl.tensor, arcs: tl.tensor, mine: tl.tensor, inside: tl.tensor, own: tl.tensor, top: tl.tensor,
    col_scores: tl.tensor, x: tl.tensor, head: tl.tensor,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """Return (rows x[j_e], weights exp(LeakyReLU(z) - top), weights where z > 0) of these arcs."""
    sources = tl.load(indices + arcs, mask=mine, other=None if mine is None else 0).to(tl.int64)
    z = own + tl.load(col_scores + sources * HEADS + head, mask=mine).to(SUM)
    if mine is not None:
        z = tl.where(mine, z, float("-inf"))
    weight = tl.exp(leaky(z, SLOPE) - top)
    return _gather(x, sources * (HEADS * WIDTH), mine, inside, SUM), weight, tl.where(z > 0, weight, 0)


@jit
def attend(
    indptr: tl.tensor, indices: tl.tensor, row_scores: tl.tensor, col_scores: tl.tensor, top: tl.tensor,
    total: tl.tensor, x: tl.tensor, out: tl.tensor, lean: tl.tensor, piece_sums: tl.tensor, piece_weights: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ARCS: tl.constexpr,
    COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """y, and `lean` if given; a piece's y, y[+] and (sum alpha)[+] go to piece_sums and piece_weights."""
    program, head = tl.program_id(0), tl.program_id(1)
    columns, lanes = tl.arange(0, COLUMNS), tl.arange(0, ARCS)
    written = columns < WIDTH
    inside = None if WIDTH == COLUMNS else written[None, :]
    x += head * WIDTH + columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        at = row * HEADS + head
        own, most = tl.load(row_scores + at).to(SUM), tl.load(top + at)
        sums, sums_up = tl.zeros([ARCS, COLUMNS], SUM), tl.zeros([ARCS, COLUMNS], SUM)
        weights_up = tl.zeros([ARCS], SUM)
        whole = count // ARCS * ARCS
        for k in range(0, whole, ARCS):
            rows, weight, weight_up = _weigh(
                indices, start + k + lanes, None, inside, own, most, col_scores, x, head, SLOPE, HEADS, WIDTH, SUM
            )
            sums += rows * weight[:, None]
            if lean is not None:
                sums_up += rows * weight_up[:, None]
                weights_up += weight_up
        if whole < count:
            rows, weight, weight_up = _weigh(
                indices, start + whole + lanes, whole + lanes < count, inside, own, most, col_scores, x, head,
                SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
            sums += rows * weight[:, None]
            if lean is not None:
                sums_up += rows * weight_up[:, None]
                weights_up += weight_up
        norm = tl.load(total + at)
        norm = tl.where(norm == 0, 1, norm)  # a row without arcs
        y, y_up, weight_up = tl.sum(sums, 0) / norm, tl.sum(sums_up, 0) / norm, tl.sum(weights_up, 0) / norm
        if program < num_pieces:
            piece = program.to(tl.int64) * HEADS + head
            tl.store(piece_sums + piece * (2 * WIDTH) + columns, y, mask=written)
            tl.store(piece_sums + piece * (2 * WIDTH) + WIDTH + columns, y_up, mask=written)
            tl.store(piece_weights + piece, weight_up)
        else:
            kept = written & (count >= 0)
            tl.store(out + at * WIDTH + columns, y.to(out.dtype.element_ty), mask=kept)
            if lean is not None:
                tl.store(lean + at * WIDTH + columns, (y_up - weight_up * y).to(out.dtype.element_ty), mask=kept)


@jit
def prepare_grad(
    grad: tl.tensor, y: tl.tensor, lean: tl.tensor, row_scores: tl.tensor, top: tl.tensor, total: tl.tensor,
    facts: tl.tensor, row_grad: tl.tensor, num_rows: tl.tensor, SLOPE: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """facts[i, h] = (row, top, 1 / total, delta) of a target, stored together for one read;  d row."""
    rows, head = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    columns, present = tl.arange(0, COLUMNS), rows < num_rows
    inside = present[:, None] & (columns < WIDTH)[None, :]
    at = rows * HEADS + head
    block = at[:, None] * WIDTH + columns[None, :]
    dy = tl.load(grad + block, mask=inside, other=0).to(SUM)
    delta = tl.sum(dy * tl.load(y + block, mask=inside, other=0).to(SUM), 1)
    tilt = tl.sum(dy * tl.load(lean + block, mask=inside, other=0).to(SUM), 1) * (1 - SLOPE)
    tl.store(row_grad + at, tilt.to(row_grad.dtype.element_ty), mask=present)
    tl.store(facts + at * 4, tl.load(row_scores + at, mask=present, other=0).to(SUM), mask=present)
    tl.store(facts + at * 4 + 1, tl.load(top + at, mask=present, other=0), mask=present)
    norm = tl.load(total + at, mask=present, other=1)
    tl.store(facts + at * 4 + 2, 1 / tl.where(norm == 0, 1, norm), mask=present)
    tl.store(facts + at * 4 + 3, delta, mask=present)


@jit
def _weigh_back(
    indices: tl.tensor, arcs: tl.tensor, mine: tl.tensor, inside: tl.tensor, own: tl.tensor, facts: tl.tensor,
    grad: tl.tensor, head: tl.tensor, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """Return (rows dy[i_e], alpha, alpha where z > 0, delta[i_e]) of these arcs of the transpose."""
    targets = tl.load(indices + arcs, mask=mine, other=None if mine is None else 0).to(tl.int64)
    at = facts + (targets * HEADS + head)[:, None] * 4 + tl.arange(0, 4)[None, :]
    if mine is None:
        four = tl.load(at)
    else:
        four = tl.load(at, mask=mine[:, None], other=0)
    even, odd = tl.split(tl.reshape(four, [ARCS, 2, 2]))  # facts 0 and 2, facts 1 and 3
    row_score, inverse = tl.split(even)
    top, delta = tl.split(odd)
    z = row_score + own
    if mine is not None:
        z = tl.where(mine, z, float("-inf"))
    alpha = tl.exp(leaky(z, SLOPE) - top) * inverse
    rows = _gather(grad, targets * (HEADS * WIDTH), mine, inside, SUM)
    return rows, alpha, tl.where(z > 0, alpha, 0), delta


@jit
def attend_grad(
    indptr: tl.tensor, indices: tl.tensor, facts: tl.tensor, col_scores: tl.tensor, x: tl.tensor, grad: tl.tensor,
    x_grad: tl.tensor, col_grad: tl.tensor, piece_sums: tl.tensor, piece_weights: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, ARCS: tl.constexpr,
    COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """d x and d col, over transposed arcs; a piece's u, u[+] and sum of deltas go to piece_sums and piece_weights."""
    program, head = tl.program_id(0), tl.program_id(1)
    columns, lanes = tl.arange(0, COLUMNS), tl.arange(0, ARCS)
    written = columns < WIDTH
    inside = None if WIDTH == COLUMNS else written[None, :]
    grad += head * WIDTH + columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        at = row * HEADS + head
        own = tl.load(col_scores + at).to(SUM)
        sums, sums_up = tl.zeros([ARCS, COLUMNS], SUM), tl.zeros([ARCS, COLUMNS], SUM)
        deltas = tl.zeros([ARCS], SUM)
        whole = count // ARCS * ARCS
        for k in range(0, whole, ARCS):
            rows, alpha, alpha_up, delta = _weigh_back(
                indices, start + k + lanes, None, inside, own, facts, grad, head, SLOPE, HEADS, WIDTH, ARCS, SUM
            )
            sums += rows * alpha[:, None]
            sums_up += rows * alpha_up[:, None]
            deltas += (SLOPE * alpha + (1 - SLOPE) * alpha_up) * delta
        if whole < count:
            rows, alpha, alpha_up, delta = _weigh_back(
                indices, start + whole + lanes, whole + lanes < count, inside, own, facts, grad, head,
                SLOPE, HEADS, WIDTH, ARCS, SUM,
            )  # fmt: skip
            sums += rows * alpha[:, None]
            sums_up += rows * alpha_up[:, None]
            deltas += (SLOPE * alpha + (1 - SLOPE) * alpha_up) * delta
        u, u_up, weight = tl.sum(sums, 0), tl.sum(sums_up, 0), tl.sum(deltas, 0)
        if program < num_pieces:
            piece = program.to(tl.int64) * HEADS + head
            tl.store(piece_sums + piece * (2 * WIDTH) + columns, u, mask=written)
            tl.store(piece_sums + piece * (2 * WIDTH) + WIDTH + columns, u_up, mask=written)
            tl.store(piece_weights + piece, weight)
        else:
            kept = written & (count >= 0)
            mine = tl.load(x + at * WIDTH + columns, mask=written, other=0).to(SUM)
            tilt = tl.sum(tl.where(written, mine * (SLOPE * u + (1 - SLOPE) * u_up), 0), 0) - weight
            tl.store(x_grad + at * WIDTH + columns, u.to(x_grad.dtype.element_ty), mask=kept)
            tl.store(col_grad + at, tilt.to(col_grad.dtype.element_ty), mask=count >= 0)


@jit
def merge_attended(
    piece_sums: tl.tensor, piece_weights: tl.tensor, first: tl.tensor, long_rows: tl.tensor, out: tl.tensor,
    lean: tl.tensor, x: tl.tensor, col_grad: tl.tensor, SLOPE: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """Combine the long rows of `attend` (y and lean) or, if `x` is given, of `attend_grad` (d x and d col)."""
    k, head = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, COLUMNS)
    written = columns < WIDTH
    sums, sums_up = tl.zeros([COLUMNS], SUM), tl.zeros([COLUMNS], SUM)
    weight = tl.zeros([], SUM)
    for piece in range(tl.load(first + k).to(tl.int64), tl.load(first + k + 1).to(tl.int64)):
        at = piece * HEADS + head
        sums += tl.load(piece_sums + at * (2 * WIDTH) + columns, mask=written, other=0)
        sums_up += tl.load(piece_sums + at * (2 * WIDTH) + WIDTH + columns, mask=written, other=0)
        weight += tl.load(piece_weights + at)
    at = tl.load(long_rows + k).to(tl.int64) * HEADS + head
    tl.store(out + at * WIDTH + columns, sums.to(out.dtype.element_ty), mask=written)
    if lean is not None:
        tl.store(lean + at * WIDTH + columns, (sums_up - weight * sums).to(out.dtype.element_ty), mask=written)
    if x is not None:
        mine = tl.load(x + at * WIDTH + columns, mask=written, other=0).to(SUM)
        tilt = tl.sum(mine * (SLOPE * sums + (1 - SLOPE) * sums_up), 0) - weight
        tl.store(col_grad + at, tilt.to(col_grad.dtype.element_ty))
