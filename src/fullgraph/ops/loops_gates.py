"""The numba loops of sums of gated rows; loops.py has the rules. An empty array means an absent argument."""

import math
from typing import Any

import numpy as np

from fullgraph.compiled import Array, inlined
from fullgraph.ops.loops import _ahead, _jit, _prefetch_row


@inlined
def _factors(
    z: Array, v: Array, e: Any, i: Any, j: Any, row: Array, col: Array, value: Array, edge: Array, gate: Array,
    extra: Array, sigmoid: Any,
) -> None:  # fmt: skip
    """z = act(row[i] + col[j] + edge[e] gate),  v = value[j] + edge[e] extra"""
    zero, one = col.dtype.type(0), col.dtype.type(1)
    for k in range(z.size):
        z[k] = col[j, k]
        v[k] = value[j, k] if value.size else one
    if row.size:
        for k in range(z.size):
            z[k] += row[i, k]
    if edge.size and gate.size:
        for q in range(gate.shape[0]):
            a = edge[e, q]
            for k in range(z.size):
                z[k] += a * gate[q, k]
            if extra.size:
                for k in range(z.size):
                    v[k] += a * extra[q, k]
    elif edge.size:
        for k in range(z.size):
            z[k] += edge[e, k]
    for k in range(z.size):
        if sigmoid:
            z[k] = one / (one + math.exp(-z[k]))
        else:
            z[k] = zero if z[k] <= 0 else z[k]  # a NaN stays


@_jit
def gated(
    indptr: Array, indices: Array, row: Array, col: Array, value: Array, edge: Array, gate: Array, extra: Array,
    sigmoid: Any, out: Array, first: int, last: int,
) -> None:  # fmt: skip
    """out[i] = sum_e act(z) v"""
    width, stop, flat, value_flat = col.shape[1], indices.size - 1, col.reshape(-1), value.reshape(-1)
    ahead, z, v = _ahead(width * col.itemsize), np.empty(width, col.dtype), np.empty(width, col.dtype)
    for i in range(first, last):
        o = out[i]
        for k in range(width):
            o[k] = 0
        for e in range(indptr[i], indptr[i + 1]):
            soon = np.int64(indices[min(e + ahead, stop)])
            _prefetch_row(flat, soon, width)
            if value.size:
                _prefetch_row(value_flat, soon, width)
            _factors(z, v, e, i, np.int64(indices[e]), row, col, value, edge, gate, extra, sigmoid)
            for k in range(width):
                o[k] += z[k] * v[k]


@inlined
def _gradients(z: Array, v: Array, g: Array, sigmoid: Any) -> None:
    """Replace both factors by the gradients of their arguments."""
    for k in range(z.size):
        a = z[k]
        if sigmoid:
            z[k] = g[k] * v[k] * a * (1 - a)
        else:
            z[k] = 0 if a <= 0 else g[k] * v[k]
        v[k] = g[k] * a


@_jit
def gated_grad_rows(
    indptr: Array, indices: Array, row: Array, col: Array, value: Array, edge: Array, gate: Array, extra: Array,
    sigmoid: Any, grad: Array, cuts: Array, d_row: Array, d_edge: Array, d_gate: Array, d_extra: Array, first: int,
    last: int,
) -> None:  # fmt: skip
    """d row,  d edge,  and the shares of d gate and d extra of the chunk of rows that begins at `first`"""
    width, stop, flat, value_flat = col.shape[1], indices.size - 1, col.reshape(-1), value.reshape(-1)
    ahead, z, v = _ahead(width * col.itemsize), np.empty(width, col.dtype), np.empty(width, col.dtype)
    share = np.searchsorted(cuts, first, side="right") - 1
    for i in range(first, last):
        if d_row.size:
            for k in range(width):
                d_row[i, k] = 0
        for e in range(indptr[i], indptr[i + 1]):
            soon = np.int64(indices[min(e + ahead, stop)])
            _prefetch_row(flat, soon, width)
            if value.size:
                _prefetch_row(value_flat, soon, width)
            _factors(z, v, e, i, np.int64(indices[e]), row, col, value, edge, gate, extra, sigmoid)
            _gradients(z, v, grad[i], sigmoid)
            if d_row.size:
                for k in range(width):
                    d_row[i, k] += z[k]
            for q in range(d_gate.shape[1]):
                a, part = edge[e, q], d_gate[share, q]
                for k in range(width):
                    part[k] += a * z[k]
            for q in range(d_extra.shape[1]):
                a, part = edge[e, q], d_extra[share, q]
                for k in range(width):
                    part[k] += a * v[k]
            if d_edge.size and gate.size:
                for q in range(gate.shape[0]):
                    total = col.dtype.type(0)
                    for k in range(width):
                        total += z[k] * gate[q, k]
                    if extra.size:
                        for k in range(width):
                            total += v[k] * extra[q, k]
                    d_edge[e, q] = total
            elif d_edge.size:
                for k in range(width):
                    d_edge[e, k] = z[k]


@_jit
def gated_grad_cols(
    indptr: Array, indices: Array, perm: Array, row: Array, col: Array, value: Array, edge: Array, gate: Array,
    extra: Array, sigmoid: Any, grad: Array, d_col: Array, d_value: Array, first: int, last: int,
) -> None:  # fmt: skip
    """d col[j] and d value[j], over the transposed arcs"""
    width, stop, flat, row_flat = col.shape[1], indices.size - 1, grad.reshape(-1), row.reshape(-1)
    ahead, z, v = _ahead(width * col.itemsize), np.empty(width, col.dtype), np.empty(width, col.dtype)
    for j in range(first, last):
        for k in range(width):
            d_col[j, k] = 0
            if d_value.size:
                d_value[j, k] = 0
        for q in range(indptr[j], indptr[j + 1]):
            soon = np.int64(indices[min(q + ahead, stop)])
            _prefetch_row(flat, soon, width)
            if row.size:
                _prefetch_row(row_flat, soon, width)
            i = np.int64(indices[q])
            e = np.int64(perm[q]) if perm.size else np.int64(0)
            _factors(z, v, e, i, j, row, col, value, edge, gate, extra, sigmoid)
            _gradients(z, v, grad[i], sigmoid)
            for k in range(width):
                d_col[j, k] += z[k]
            if d_value.size:
                for k in range(width):
                    d_value[j, k] += v[k]
