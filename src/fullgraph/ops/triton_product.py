"""The sparse-dense product in Triton: a program sums the rows of x that a few rows (or a piece of a long row) read.

The second axis of the grid, slower than the first, walks over slices of columns: while one slice is summed for all
rows, the needed part of x may stay in the L2 cache. Sums run in a fixed order, so reruns give the same bits. The
compiler knows all widths: an address then takes one multiply-add, which matters because after the caches, the rate of
instructions is the next limit. For the same reason only the last arcs of a row are read under a mask.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import arcs_of, jit, rows_of


@jit
def _read(
    x: tl.tensor, sources: tl.tensor, arcs: tl.tensor, mine: tl.tensor, readable: tl.tensor,
    perm: tl.tensor, weight: tl.tensor, col_scale: tl.tensor, head: tl.tensor,
    HEADS: tl.constexpr, READ: tl.constexpr, SUM: tl.constexpr,
) -> Any:  # fmt: skip
    """weight[perm[e], h] col_scale[j_e] x[j_e, h] of these arcs; `mine` and `readable` are None without a mask."""
    at = x[None, :] + sources.to(tl.int64)[:, None] * (HEADS * READ)
    if mine is None:
        rows = tl.load(at, mask=readable).to(SUM)
    elif readable is None:
        rows = tl.load(at, mask=mine[:, None], other=0).to(SUM)
    else:
        rows = tl.load(at, mask=mine[:, None] & readable, other=0).to(SUM)
    if weight is not None:
        if perm is not None:
            arcs = tl.load(perm + arcs, mask=mine).to(tl.int64)
        factor = tl.load(weight + arcs * HEADS + head, mask=mine).to(SUM)
        if col_scale is not None:
            factor *= tl.load(col_scale + sources, mask=mine).to(SUM)
        if mine is not None:
            factor = tl.where(mine, factor, 0)
        rows *= factor[:, None]
    elif col_scale is not None:
        factor = tl.load(col_scale + sources, mask=mine).to(SUM)
        if mine is not None:
            factor = tl.where(mine, factor, 0)
        rows *= factor[:, None]
    return rows


@jit
def product(
    indptr: tl.tensor, indices: tl.tensor, perm: tl.tensor, weight: tl.tensor, row_scale: tl.tensor,
    col_scale: tl.tensor, x: tl.tensor, out: tl.tensor, partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, HEADS: tl.constexpr, WIDTH: tl.constexpr, READ: tl.constexpr, ADD: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[i, h] = (ADD ? out[i, h] : 0) + row_scale[i] sum_e weight[perm[e], h] col_scale[j_e] x[j_e, h]

    Without `indices`, arc e reads row e of x. Rows of x have READ numbers per head, of which WIDTH are used. The sum of
    a piece goes to `partial`.
    """
    program, head = tl.program_id(0), tl.program_id(2)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lanes = tl.arange(0, ARCS)
    written = columns < WIDTH
    readable = None if READ % COLUMNS == 0 else (columns < READ)[None, :]
    x += head * READ + columns
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        whole = count // ARCS * ARCS
        total = tl.zeros([ARCS, COLUMNS], SUM)
        if indices is None:
            for k in range(0, whole, ARCS):
                arcs = start + k + lanes
                total += _read(x, arcs, arcs, None, readable, perm, weight, col_scale, head, HEADS, READ, SUM)
        else:
            sources = tl.load(indices + start + lanes, mask=lanes < whole, other=0)
            for k in range(0, whole, ARCS):
                # Load the next sources while x is read; after the last ones, load the last ones again.
                soon = tl.load(indices + start + tl.minimum(k + ARCS, whole - ARCS) + lanes)
                arcs = start + k + lanes
                total += _read(x, sources, arcs, None, readable, perm, weight, col_scale, head, HEADS, READ, SUM)
                sources = soon
        if whole < count:
            arcs, mine = start + whole + lanes, whole + lanes < count
            if indices is None:
                sources = arcs
            else:
                sources = tl.load(indices + arcs, mask=mine, other=0)
            total += _read(x, sources, arcs, mine, readable, perm, weight, col_scale, head, HEADS, READ, SUM)
        result = tl.sum(total, 0)
        if row_scale is not None:
            result *= tl.load(row_scale + row).to(SUM)
        if program < num_pieces:
            tl.store(partial + (program.to(tl.int64) * HEADS + head) * WIDTH + columns, result, mask=written)
        else:
            target = out + (row * HEADS + head) * WIDTH + columns
            kept = written & (count >= 0)
            if ADD:
                result += tl.load(target, mask=kept, other=0).to(SUM)
            tl.store(target, result.to(out.dtype.element_ty), mask=kept)


@jit
def add_pieces(
    partial: tl.tensor, first: tl.tensor, rows: tl.tensor, out: tl.tensor,
    WIDTH: tl.constexpr, ADD: tl.constexpr, PIECES: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """out[rows[k]] = (ADD ? out[rows[k]] : 0) + the sum of partial[first[k]] .. partial[first[k+1] - 1]"""
    k = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lanes, written = tl.arange(0, PIECES), columns < WIDTH
    stop = tl.load(first + k + 1)
    total = tl.zeros([PIECES, COLUMNS], SUM)
    for piece in range(tl.load(first + k), stop, PIECES):
        at = partial + (piece + lanes).to(tl.int64)[:, None] * WIDTH + columns[None, :]
        total += tl.load(at, mask=(piece + lanes < stop)[:, None] & written[None, :], other=0)
    result = tl.sum(total, 0)
    target = out + tl.load(rows + k).to(tl.int64) * WIDTH + columns
    if ADD:
        result += tl.load(target, mask=written, other=0).to(SUM)
    tl.store(target, result.to(out.dtype.element_ty), mask=written)
