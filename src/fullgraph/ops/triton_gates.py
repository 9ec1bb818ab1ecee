"""Sums of gated rows in Triton: each of the three passes recomputes both factors of an arc.

    z = row[i] + col[j] + edge[e] gate,  v = value[j] + edge[e] extra,  y[i] = sum act(z) v

A program computes all columns. Features of an arc are mapped in registers: BLOCK covers them.
"""

from typing import Any

import triton.language as tl

from fullgraph.ops.triton_base import arcs_of, jit, rows_of


@jit
def _tile(
    x: tl.tensor, rows: tl.tensor, valid: tl.tensor, columns: tl.tensor, WIDTH: tl.constexpr, SUM: tl.constexpr
) -> Any:
    """x[rows], 0 outside"""
    return tl.load(x + rows[:, None] * WIDTH + columns[None, :], mask=valid, other=0).to(SUM)


@jit
def _weights(
    x: tl.tensor,
    features: tl.tensor,
    columns: tl.tensor,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    SUM: tl.constexpr,
) -> Any:
    """A map [BLOCK, COLUMNS] of features, 0 outside."""
    inside = (features < FEATURES)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(x + features[:, None] * WIDTH + columns[None, :], mask=inside, other=0).to(SUM)


@jit
def _mapped(attr: tl.tensor, weights: tl.tensor) -> Any:
    return tl.sum(attr[:, :, None] * weights[None, :, :], 1)


@jit
def _gate(z: tl.tensor, SIGMOID: tl.constexpr) -> Any:
    if SIGMOID:
        return 1 / (1 + tl.exp(-z))
    else:
        return tl.where(z <= 0, 0, z)  # a NaN stays


@jit
def _slope(gate: tl.tensor, SIGMOID: tl.constexpr) -> Any:
    if SIGMOID:
        return gate * (1 - gate)
    else:
        return tl.where(gate <= 0, 0.0, 1.0)


@jit
def gated(
    indptr: tl.tensor, indices: tl.tensor, row_values: tl.tensor, col: tl.tensor, value: tl.tensor, edge: tl.tensor,
    gate: tl.tensor, extra: tl.tensor, out: tl.tensor, partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SIGMOID: tl.constexpr, FEATURES: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """y; that of a piece goes to `partial`."""
    program = tl.program_id(0)
    columns, lanes, features = tl.arange(0, COLUMNS), tl.arange(0, ARCS), tl.arange(0, BLOCK)
    written = columns < WIDTH
    gates, extras = None, None
    if gate is not None:
        gates = _weights(gate, features, columns, FEATURES, WIDTH, SUM)
    if extra is not None:
        extras = _weights(extra, features, columns, FEATURES, WIDTH, SUM)
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        total = tl.zeros([ARCS, COLUMNS], SUM)
        own = tl.zeros([COLUMNS], SUM)
        if row_values is not None:
            own = tl.load(row_values + row * WIDTH + columns, mask=written, other=0).to(SUM)
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            valid = mine[:, None] & written[None, :]
            sources = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
            z = _tile(col, sources, valid, columns, WIDTH, SUM) + own[None, :]
            if gates is not None:
                known = mine[:, None] & (features < FEATURES)[None, :]
                attr = _tile(edge, arcs, known, features, FEATURES, SUM)
                z += _mapped(attr, gates)
            elif edge is not None:
                z += _tile(edge, arcs, valid, columns, WIDTH, SUM)
            message = _gate(z, SIGMOID)
            if value is not None:
                v = _tile(value, sources, valid, columns, WIDTH, SUM)
                if extras is not None:
                    v += _mapped(attr, extras)
                message *= v
            total += tl.where(valid, message, 0)
        result = tl.sum(total, 0)
        if program < num_pieces:
            tl.store(partial + program.to(tl.int64) * WIDTH + columns, result, mask=written)
        else:
            tl.store(out + row * WIDTH + columns, result.to(out.dtype.element_ty), mask=written & (count >= 0))


@jit
def gated_grad_rows(
    indptr: tl.tensor, indices: tl.tensor, row_values: tl.tensor, col: tl.tensor, value: tl.tensor, edge: tl.tensor,
    gate: tl.tensor, extra: tl.tensor, grad: tl.tensor, d_row: tl.tensor, d_edge: tl.tensor, d_gate: tl.tensor,
    d_extra: tl.tensor, partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SIGMOID: tl.constexpr, FEATURES: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """d row (a piece's to `partial`), d edge, and a program's shares of d gate and d extra."""
    program = tl.program_id(0)
    columns, lanes, features = tl.arange(0, COLUMNS), tl.arange(0, ARCS), tl.arange(0, BLOCK)
    written = columns < WIDTH
    gates, extras = None, None
    if gate is not None:
        gates = _weights(gate, features, columns, FEATURES, WIDTH, SUM)
    if extra is not None:
        extras = _weights(extra, features, columns, FEATURES, WIDTH, SUM)
    d_gates, d_extras = tl.zeros([BLOCK, COLUMNS], SUM), tl.zeros([BLOCK, COLUMNS], SUM)
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        total = tl.zeros([ARCS, COLUMNS], SUM)
        own = tl.zeros([COLUMNS], SUM)
        if row_values is not None:
            own = tl.load(row_values + row * WIDTH + columns, mask=written, other=0).to(SUM)
        dy = tl.load(grad + row * WIDTH + columns, mask=written, other=0).to(SUM)
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            valid = mine[:, None] & written[None, :]
            sources = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
            z = _tile(col, sources, valid, columns, WIDTH, SUM) + own[None, :]
            known = mine[:, None] & (features < FEATURES)[None, :]
            if gates is not None:
                attr = _tile(edge, arcs, known, features, FEATURES, SUM)
                z += _mapped(attr, gates)
            elif edge is not None:
                z += _tile(edge, arcs, valid, columns, WIDTH, SUM)
            a = _gate(z, SIGMOID)
            dz = tl.where(valid, dy[None, :] * _slope(a, SIGMOID), 0)
            if value is not None:
                v = _tile(value, sources, valid, columns, WIDTH, SUM)
                if extras is not None:
                    v += _mapped(attr, extras)
                dz *= v
            total += dz
            if gates is not None:
                d_gates += tl.sum(attr[:, :, None] * dz[:, None, :], 0)
                if extras is not None:
                    dv = tl.where(valid, dy[None, :] * a, 0)
                    d_extras += tl.sum(attr[:, :, None] * dv[:, None, :], 0)
            if d_edge is not None:
                if gates is not None:
                    d_attr = tl.sum(dz[:, None, :] * gates[None, :, :], 2)
                    if extras is not None:
                        d_attr += tl.sum(dv[:, None, :] * extras[None, :, :], 2)
                    to = d_edge + arcs[:, None] * FEATURES + features[None, :]
                    tl.store(to, d_attr.to(d_edge.dtype.element_ty), mask=known)
                else:
                    to = d_edge + arcs[:, None] * WIDTH + columns[None, :]
                    tl.store(to, dz.to(d_edge.dtype.element_ty), mask=valid)
        if d_row is not None:
            result = tl.sum(total, 0)
            if program < num_pieces:
                tl.store(partial + program.to(tl.int64) * WIDTH + columns, result, mask=written)
            else:
                tl.store(d_row + row * WIDTH + columns, result.to(d_row.dtype.element_ty), mask=written & (count >= 0))
    to = (program.to(tl.int64) * FEATURES + features)[:, None] * WIDTH + columns[None, :]
    inside = (features < FEATURES)[:, None] & written[None, :]
    if gates is not None:
        tl.store(d_gate + to, d_gates, mask=inside)
    if extras is not None:
        tl.store(d_extra + to, d_extras, mask=inside)


@jit
def gated_grad_cols(
    indptr: tl.tensor, indices: tl.tensor, perm: tl.tensor, row_values: tl.tensor, col: tl.tensor, value: tl.tensor,
    edge: tl.tensor, gate: tl.tensor, extra: tl.tensor, grad: tl.tensor, d_col: tl.tensor, d_value: tl.tensor,
    partial: tl.tensor, value_partial: tl.tensor,
    piece_rows: tl.tensor, piece_places: tl.tensor, num_pieces: tl.tensor, chunk: tl.tensor, rows_each: tl.tensor,
    num_rows: tl.tensor, SIGMOID: tl.constexpr, FEATURES: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    ARCS: tl.constexpr, COLUMNS: tl.constexpr, SUM: tl.constexpr,
) -> None:  # fmt: skip
    """d col and d value, over transposed arcs; the sums of a piece go to the partial arrays."""
    program = tl.program_id(0)
    columns, lanes, features = tl.arange(0, COLUMNS), tl.arange(0, ARCS), tl.arange(0, BLOCK)
    written = columns < WIDTH
    gates, extras = None, None
    if gate is not None:
        gates = _weights(gate, features, columns, FEATURES, WIDTH, SUM)
    if extra is not None:
        extras = _weights(extra, features, columns, FEATURES, WIDTH, SUM)
    first, last = rows_of(program, piece_rows, num_pieces, rows_each, num_rows)
    for row in range(first, last):
        start, count = arcs_of(row, program, indptr, piece_places, num_pieces, chunk)
        total, value_total = tl.zeros([ARCS, COLUMNS], SUM), tl.zeros([ARCS, COLUMNS], SUM)
        own = tl.load(col + row * WIDTH + columns, mask=written, other=0).to(SUM)
        own_value = own
        if value is not None:
            own_value = tl.load(value + row * WIDTH + columns, mask=written, other=0).to(SUM)
        for k in range(0, count, ARCS):
            arcs, mine = start + k + lanes, k + lanes < count
            valid = mine[:, None] & written[None, :]
            targets = tl.load(indices + arcs, mask=mine, other=0).to(tl.int64)
            z = tl.zeros([ARCS, COLUMNS], SUM) + own[None, :]
            if row_values is not None:
                z += _tile(row_values, targets, valid, columns, WIDTH, SUM)
            if edge is not None:
                origin = tl.load(perm + arcs, mask=mine, other=0).to(tl.int64)
                if gates is not None:
                    known = mine[:, None] & (features < FEATURES)[None, :]
                    attr = _tile(edge, origin, known, features, FEATURES, SUM)
                    z += _mapped(attr, gates)
                else:
                    z += _tile(edge, origin, valid, columns, WIDTH, SUM)
            a, dy = _gate(z, SIGMOID), _tile(grad, targets, valid, columns, WIDTH, SUM)
            dz = dy * _slope(a, SIGMOID)
            if value is not None:
                v = tl.zeros([ARCS, COLUMNS], SUM) + own_value[None, :]
                if extras is not None:
                    v += _mapped(attr, extras)
                dz *= v
                value_total += tl.where(valid, dy * a, 0)
            total += tl.where(valid, dz, 0)
        result, kept = tl.sum(total, 0), written & (count >= 0)
        if program < num_pieces:
            tl.store(partial + program.to(tl.int64) * WIDTH + columns, result, mask=written)
        else:
            tl.store(d_col + row * WIDTH + columns, result.to(d_col.dtype.element_ty), mask=kept)
        if value is not None:
            result = tl.sum(value_total, 0)
            if program < num_pieces:
                tl.store(value_partial + program.to(tl.int64) * WIDTH + columns, result, mask=written)
            else:
                tl.store(d_value + row * WIDTH + columns, result.to(d_value.dtype.element_ty), mask=kept)
