"""Attention that compares rows, in Triton. No value per arc is stored: every value is recomputed when it is needed.

With att, score = sum_d att[d] LeakyReLU(row[i, d] + col[j, d] + edge[e, d]) and value = col[j];  without it,
score = scale <row[i], col[j] + edge[e]> and value = value[j] + edge[e].  The arcs are read three times:

    y[i] = sum alpha keep value    and lse[i] = log sum exp score, in one pass: every lane has a running maximum
    d score = alpha (keep <dy[i], value> - delta[i]),  delta[i] = <dy[i], y[i]>,  alpha = exp(score - lse[i])
    d row[i] and d att, d edge[e]  over the arcs into i;  d col[j], d value[j]  over the arcs out of j

A program computes one head; COLUMNS covers it. Only the last arcs of a row are read under a mask.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_arcs import above, leaky
from fullgraph.ops.triton_base import arcs_of, jit, rows_of


@jit
def _gather(x: tl.tensor, rows: tl.tensor, mine: tl.tensor, inside: tl.tensor, SUM: tl.constexpr) -> Any:
    """Load the tile x[rows], 0 outside; `mine` and `inside` are None if no mask is needed."""
    at = x[None, :] + rows[:, None]
    if mine is None:
        if inside is None:
            return tl.load(at).to(SUM)
        else:
            return tl.load(at, mask=inside, other=0).to(SUM)
    elif inside is None:
        return tl.load(at, mask=mine[:, None], other=0).to(SUM)
    else:
        return tl.load(at, mask=mine[:, None] & inside, other=0).to(SUM)


@jit
def _absorb(
    highest: tl.tensor, norm: tl.tensor, sums: tl.tensor, indices: tl.tensor, arcs: tl.tensor, mine: tl.tensor,
    inside: tl.tensor, own: tl.tensor, weights: tl.tensor, col: tl.tensor, value: tl.tensor, edge: tl.tensor,
    keep: tl.tensor, head: tl.tensor,
    SCALE: tl.constexpr, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """Update every lane's running (maximum, sum of exponentials, weighted sum of values) with these arcs."""
    sources = tl.load(indices + arcs, mask=mine, other=None if mine is None else 0).to(tl.int64) * (HEADS * WIDTH)
    z = _gather(col, sources, mine, inside, SUM)
    if weights is not None:
        rows = z
        z += own[None, :]
        if edge is not None:
            z += _gather(edge, arcs * (HEADS * WIDTH), mine, inside, SUM)
        score = tl.sum(leaky(z, SLOPE) * weights[None, :], 1)
    else:
        rows = _gather(value, sources, mine, inside, SUM)
        if edge is not None:
            extra = _gather(edge, arcs * (HEADS * WIDTH), mine, inside, SUM)
            rows += extra
            z += extra
        score = tl.sum(z * own[None, :], 1) * SCALE
    if mine is not None:
        score = tl.where(mine, score, float("-inf"))
    higher = tl.maximum(highest, score)
    shift = above(higher)
    fade, weight = tl.exp(highest - shift), tl.exp(score - shift)
    norm = norm * fade + weight
    if keep is not None:
        weight *= tl.load(keep + arcs * HEADS + head, mask=mine, other=None if mine is None else 0).to(SUM)
    return higher, norm, sums * fade[:, None] + rows * weight[:, None]


@jit
def pairs(
    indptr: tl.tensor, indices: tl.tensor, row_values: tl.tensor, col: tl.tensor, value: tl.tensor, att: tl.tensor,
    edge: tl.tensor, keep: tl.tensor, out: tl.tensor, lse: tl.tensor,
    piece_sums: tl.tensor, piece_facts: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SCALE: tl.constexpr, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """y and lse; a piece's y goes to piece_sums, its maximum and its sum of exponentials to piece_facts."""
    program, head = tl.program_id(0), tl.program_id(1)
    columns, lanes = tl.arange(0, COLUMNS), tl.arange(0, ARCS)
    written = columns < WIDTH
    inside = None if WIDTH == COLUMNS else written[None, :]
    col += head * WIDTH + columns
    weights = None
    if att is not None:
        weights = tl.load(att + head * WIDTH + columns, mask=written, other=0).to(SUM)
    else:
        value += head * WIDTH + columns
    if edge is not None:
        edge += head * WIDTH + columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        at = row * HEADS + head
        own = tl.load(row_values + at * WIDTH + columns, mask=written, other=0).to(SUM)
        highest, norm = tl.full([ARCS], float("-inf"), SUM), tl.zeros([ARCS], SUM)
        sums = tl.zeros([ARCS, COLUMNS], SUM)
        whole = count // ARCS * ARCS
        for k in range(0, whole, ARCS):
            highest, norm, sums = _absorb(
                highest, norm, sums, indices, start + k + lanes, None, inside, own, weights, col, value, edge, keep,
                head, SCALE, SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
        if whole < count:
            highest, norm, sums = _absorb(
                highest, norm, sums, indices, start + whole + lanes, whole + lanes < count, inside, own, weights, col,
                value, edge, keep, head, SCALE, SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
        best = tl.max(highest, 0)
        fade = tl.exp(highest - above(best))
        total = tl.sum(norm * fade, 0)
        y = tl.sum(sums * fade[:, None], 0) / tl.where(total == 0, 1, total)  # a row without arcs
        if program < num_pieces:
            piece = program.to(tl.int64) * HEADS + head
            tl.store(piece_sums + piece * WIDTH + columns, y, mask=written)
            tl.store(piece_facts + piece * 2, best)
            tl.store(piece_facts + piece * 2 + 1, total)
        else:
            tl.store(out + at * WIDTH + columns, y.to(out.dtype.element_ty), mask=written & (count >= 0))
            tl.store(lse + at, above(best) + tl.log(total), mask=count >= 0)


@jit
def merge_pairs(
    piece_sums: tl.tensor, piece_facts: tl.tensor, first: tl.tensor, long_rows: tl.tensor, out: tl.tensor,
    lse: tl.tensor, HEADS: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """y and lse of the long rows, from their pieces."""
    k, head = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, COLUMNS)
    written = columns < WIDTH
    sums, norm = tl.zeros([COLUMNS], SUM), tl.zeros([], SUM)
    best = tl.full([], float("-inf"), SUM)
    for piece in range(tl.load(first + k).to(tl.int64), tl.load(first + k + 1).to(tl.int64)):
        at = piece * HEADS + head
        other, weight = tl.load(piece_facts + at * 2), tl.load(piece_facts + at * 2 + 1)
        higher = tl.maximum(best, other)
        fade, weight = tl.exp(best - above(higher)), weight * tl.exp(other - above(higher))
        sums = sums * fade + tl.load(piece_sums + at * WIDTH + columns, mask=written, other=0) * weight
        norm = norm * fade + weight
        best = higher
    at = tl.load(long_rows + k).to(tl.int64) * HEADS + head
    tl.store(out + at * WIDTH + columns, (sums / norm).to(out.dtype.element_ty), mask=written)
    tl.store(lse + at, above(best) + tl.log(norm))


@jit
def _row_gradients(
    d_own: tl.tensor, d_weights: tl.tensor, indices: tl.tensor, arcs: tl.tensor, mine: tl.tensor, inside: tl.tensor,
    own: tl.tensor, dy: tl.tensor, lse: tl.tensor, delta: tl.tensor, weights: tl.tensor, col: tl.tensor,
    value: tl.tensor, edge: tl.tensor, keep: tl.tensor, d_edge: tl.tensor, head: tl.tensor,
    SCALE: tl.constexpr, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """Add these arcs' parts to the gradients of their row (before its factor) and of att; store d edge."""
    sources = tl.load(indices + arcs, mask=mine, other=None if mine is None else 0).to(tl.int64) * (HEADS * WIDTH)
    z = _gather(col, sources, mine, inside, SUM)
    if weights is not None:
        rows = z
        z += own[None, :]
        if edge is not None:
            z += _gather(edge, arcs * (HEADS * WIDTH), mine, inside, SUM)
        score = tl.sum(leaky(z, SLOPE) * weights[None, :], 1)
    else:
        rows = _gather(value, sources, mine, inside, SUM)
        if edge is not None:
            extra = _gather(edge, arcs * (HEADS * WIDTH), mine, inside, SUM)
            rows += extra
            z += extra
        score = tl.sum(z * own[None, :], 1) * SCALE
    if mine is not None:
        score = tl.where(mine, score, float("-inf"))
    alpha = tl.exp(score - lse)
    d_alpha, kept = tl.sum(rows * dy[None, :], 1), alpha
    if keep is not None:
        factor = tl.load(keep + arcs * HEADS + head, mask=mine, other=None if mine is None else 0).to(SUM)
        d_alpha, kept = d_alpha * factor, alpha * factor
    d_score = alpha * (d_alpha - delta)
    if weights is not None:
        part = tl.where(z > 0, d_score[:, None], d_score[:, None] * SLOPE)
        d_own += part
        d_weights += part * z
        if d_edge is not None:
            result = part * weights[None, :]
    else:
        d_own += d_score[:, None] * z
        if d_edge is not None:
            result = (d_score * SCALE)[:, None] * own[None, :] + kept[:, None] * dy[None, :]
    if d_edge is not None:
        valid = tl.full(result.shape, True, tl.int1) if mine is None else mine[:, None]
        valid = valid if inside is None else valid & inside
        to = d_edge[None, :] + (arcs * (HEADS * WIDTH))[:, None]
        tl.store(to, result.to(d_edge.dtype.element_ty), mask=valid)
    return d_own, d_weights


@jit
def pairs_grad_rows(
    indptr: tl.tensor, indices: tl.tensor, row_values: tl.tensor, col: tl.tensor, value: tl.tensor, att: tl.tensor,
    edge: tl.tensor, keep: tl.tensor, grad: tl.tensor, facts: tl.tensor, d_row: tl.tensor,
    d_att: tl.tensor, d_edge: tl.tensor, partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SCALE: tl.constexpr, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """d row (a piece's to `partial`), a program's share of d att, and d edge."""
    program, head = tl.program_id(0), tl.program_id(1)
    columns, lanes = tl.arange(0, COLUMNS), tl.arange(0, ARCS)
    written = columns < WIDTH
    inside = None if WIDTH == COLUMNS else written[None, :]
    col += head * WIDTH + columns
    weights = None
    if att is not None:
        weights = tl.load(att + head * WIDTH + columns, mask=written, other=0).to(SUM)
    else:
        value += head * WIDTH + columns
    if edge is not None:
        edge += head * WIDTH + columns
        d_edge += head * WIDTH + columns
    d_weights = tl.zeros([ARCS, COLUMNS], SUM)
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        at = row * HEADS + head
        own = tl.load(row_values + at * WIDTH + columns, mask=written, other=0).to(SUM)
        dy = tl.load(grad + at * WIDTH + columns, mask=written, other=0).to(SUM)
        lse, delta = tl.load(facts + at * 2), tl.load(facts + at * 2 + 1)
        d_own = tl.zeros([ARCS, COLUMNS], SUM)
        whole = count // ARCS * ARCS
        for k in range(0, whole, ARCS):
            d_own, d_weights = _row_gradients(
                d_own, d_weights, indices, start + k + lanes, None, inside, own, dy, lse, delta, weights, col, value,
                edge, keep, d_edge, head, SCALE, SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
        if whole < count:
            d_own, d_weights = _row_gradients(
                d_own, d_weights, indices, start + whole + lanes, whole + lanes < count, inside, own, dy, lse, delta,
                weights, col, value, edge, keep, d_edge, head, SCALE, SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
        result = tl.sum(d_own, 0)
        if weights is not None:
            result *= weights
        else:
            result *= SCALE
        if program < num_pieces:
            tl.store(partial + (program.to(tl.int64) * HEADS + head) * WIDTH + columns, result, mask=written)
        else:
            tl.store(d_row + at * WIDTH + columns, result.to(d_row.dtype.element_ty), mask=written & (count >= 0))
    if weights is not None:
        to = d_att + (program.to(tl.int64) * HEADS + head) * WIDTH + columns
        tl.store(to, tl.sum(d_weights, 0), mask=written)


@jit
def _col_gradients(
    d_own: tl.tensor, d_value: tl.tensor, indices: tl.tensor, perm: tl.tensor, arcs: tl.tensor, mine: tl.tensor,
    inside: tl.tensor, own: tl.tensor, own_value: tl.tensor, weights: tl.tensor, row_values: tl.tensor,
    edge: tl.tensor, keep: tl.tensor, grad: tl.tensor, facts: tl.tensor, head: tl.tensor,
    SCALE: tl.constexpr, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """Add these transposed arcs' parts to the gradients of their source's row and value."""
    targets = tl.load(indices + arcs, mask=mine, other=None if mine is None else 0).to(tl.int64)
    rows = _gather(row_values, targets * (HEADS * WIDTH), mine, inside, SUM)
    dy = _gather(grad, targets * (HEADS * WIDTH), mine, inside, SUM)
    at = facts + (targets * HEADS + head) * 2
    lse = tl.load(at, mask=mine, other=None if mine is None else 0)
    delta = tl.load(at + 1, mask=mine, other=None if mine is None else 0)
    if perm is not None:
        origin = tl.load(perm + arcs, mask=mine, other=None if mine is None else 0).to(tl.int64)
    if weights is not None:
        z = rows + own[None, :]
        if edge is not None:
            z += _gather(edge, origin * (HEADS * WIDTH), mine, inside, SUM)
        score = tl.sum(leaky(z, SLOPE) * weights[None, :], 1)
        d_alpha = tl.sum(dy * own[None, :], 1)
    elif edge is not None:
        extra = _gather(edge, origin * (HEADS * WIDTH), mine, inside, SUM)
        score = tl.sum(rows * (own[None, :] + extra), 1) * SCALE
        d_alpha = tl.sum(dy * (own_value[None, :] + extra), 1)
    else:
        score = tl.sum(rows * own[None, :], 1) * SCALE
        d_alpha = tl.sum(dy * own_value[None, :], 1)
    if mine is not None:
        score = tl.where(mine, score, float("-inf"))
    alpha = tl.exp(score - lse)
    kept = alpha
    if keep is not None:
        factor = tl.load(keep + origin * HEADS + head, mask=mine, other=None if mine is None else 0).to(SUM)
        d_alpha, kept = d_alpha * factor, alpha * factor
    d_score = alpha * (d_alpha - delta)
    if weights is not None:
        part = tl.where(z > 0, d_score[:, None], d_score[:, None] * SLOPE)
        d_own += kept[:, None] * dy + part * weights[None, :]
    else:
        d_own += d_score[:, None] * rows
        d_value += kept[:, None] * dy
    return d_own, d_value


@jit
def pairs_grad_cols(
    indptr: tl.tensor, indices: tl.tensor, perm: tl.tensor, row_values: tl.tensor, col: tl.tensor, value: tl.tensor,
    att: tl.tensor, edge: tl.tensor, keep: tl.tensor, grad: tl.tensor, facts: tl.tensor,
    d_col: tl.tensor, d_value: tl.tensor, partial: tl.tensor, value_partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SCALE: tl.constexpr, SLOPE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """d col and, without att, d value, over transposed arcs; the sums of a piece go to the partial arrays."""
    program, head = tl.program_id(0), tl.program_id(1)
    columns, lanes = tl.arange(0, COLUMNS), tl.arange(0, ARCS)
    written = columns < WIDTH
    inside = None if WIDTH == COLUMNS else written[None, :]
    row_values += head * WIDTH + columns
    grad += head * WIDTH + columns
    weights = None
    if att is not None:
        weights = tl.load(att + head * WIDTH + columns, mask=written, other=0).to(SUM)
    if edge is not None:
        edge += head * WIDTH + columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        at = (row * HEADS + head) * WIDTH + columns
        own = tl.load(col + at, mask=written, other=0).to(SUM)
        sums = tl.zeros([ARCS, COLUMNS], SUM)
        own_value, value_sums = own, tl.zeros([ARCS, COLUMNS], SUM)
        if att is None:
            own_value = tl.load(value + at, mask=written, other=0).to(SUM)
        whole = count // ARCS * ARCS
        for k in range(0, whole, ARCS):
            sums, value_sums = _col_gradients(
                sums, value_sums, indices, perm, start + k + lanes, None, inside, own, own_value, weights, row_values,
                edge, keep, grad, facts, head, SCALE, SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
        if whole < count:
            sums, value_sums = _col_gradients(
                sums, value_sums, indices, perm, start + whole + lanes, whole + lanes < count, inside, own, own_value,
                weights, row_values, edge, keep, grad, facts, head, SCALE, SLOPE, HEADS, WIDTH, SUM,
            )  # fmt: skip
        result = tl.sum(sums, 0)
        if att is None:
            result *= SCALE
        piece = (program.to(tl.int64) * HEADS + head) * WIDTH + columns
        if program < num_pieces:
            tl.store(partial + piece, result, mask=written)
        else:
            tl.store(d_col + at, result.to(d_col.dtype.element_ty), mask=written & (count >= 0))
        if att is None:
            result = tl.sum(value_sums, 0)
            if program < num_pieces:
                tl.store(value_partial + piece, result, mask=written)
            else:
                tl.store(d_value + at, result.to(d_value.dtype.element_ty), mask=written & (count >= 0))
