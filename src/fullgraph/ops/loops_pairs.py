"""The numba loops of attention that compares rows, and of maxima; loops.py has the rules.

An empty array means an absent argument: with `att` scores are GATv2's, without it dot products.
"""

import math
from typing import Any

import numpy as np

from fullgraph.compiled import Array
from fullgraph.ops.loops import _ahead, _jit, _prefetch_row


@_jit
def pairs(
    indptr: Array, indices: Array, row: Array, col: Array, value: Array, att: Array, edge: Array, keep: Array,
    scale: Any, slope: Any, alpha: Array, out: Array, first: int, last: int,
) -> None:  # fmt: skip
    """alpha[e, h] = softmax of the scores,  out[i, h] = sum_e keep[e, h] alpha[e, h] (value[j_e, h] + edge[e, h])"""
    heads, width, stop, flat = row.shape[1], row.shape[2], indices.size - 1, col.reshape(-1)
    ahead, leaky, zero = _ahead(heads * width * col.itemsize), att.size > 0, col.dtype.type(0)
    values = col if leaky else value
    value_flat = values.reshape(-1)
    for i in range(first, last):
        lo, hi, r, o = indptr[i], indptr[i + 1], row[i], out[i]
        for e in range(lo, hi):
            _prefetch_row(flat, np.int64(indices[min(e + ahead, stop)]), heads * width)
            c = col[np.int64(indices[e])]
            for h in range(heads):
                total = zero
                if leaky and edge.size:
                    for k in range(width):
                        z = r[h, k] + c[h, k] + edge[e, h, k]
                        total += att[h, k] * (z if z > 0 else z * slope)
                elif leaky:
                    for k in range(width):
                        z = r[h, k] + c[h, k]
                        total += att[h, k] * (z if z > 0 else z * slope)
                elif edge.size:
                    for k in range(width):
                        total += r[h, k] * (c[h, k] + edge[e, h, k])
                else:
                    for k in range(width):
                        total += r[h, k] * c[h, k]
                alpha[e, h] = total * scale
        for h in range(heads):
            top, total = -col.dtype.type(np.inf), zero
            for e in range(lo, hi):
                top = max(top, alpha[e, h])
            for e in range(lo, hi):
                alpha[e, h] = math.exp(alpha[e, h] - top)
                total += alpha[e, h]
            for e in range(lo, hi):
                alpha[e, h] /= total
            for k in range(width):
                o[h, k] = 0
        for e in range(lo, hi):
            if not leaky:
                _prefetch_row(value_flat, np.int64(indices[min(e + ahead, stop)]), heads * width)
            v = values[np.int64(indices[e])]
            for h in range(heads):
                a = alpha[e, h] * keep[e, h] if keep.size else alpha[e, h]
                if edge.size and not leaky:
                    for k in range(width):
                        o[h, k] += a * (v[h, k] + edge[e, h, k])
                else:
                    for k in range(width):
                        o[h, k] += a * v[h, k]


@_jit
def pairs_grad_rows(
    indptr: Array, indices: Array, row: Array, col: Array, value: Array, att: Array, edge: Array, keep: Array,
    scale: Any, slope: Any, alpha: Array, grad: Array, d_row: Array, d_att: Array, d_edge: Array, d_score: Array,
    first: int, last: int,
) -> None:  # fmt: skip
    """d score[e, h] = alpha (keep <dy[i], value> - their mean),  d row,  a row's share of d att,  d edge"""
    heads, width, stop, flat = row.shape[1], row.shape[2], indices.size - 1, col.reshape(-1)
    ahead, leaky, zero = _ahead(heads * width * col.itemsize), att.size > 0, col.dtype.type(0)
    values = col if leaky else value
    value_flat = values.reshape(-1)
    mean = np.empty(heads, col.dtype)
    for i in range(first, last):
        lo, hi, r, g, dr = indptr[i], indptr[i + 1], row[i], grad[i], d_row[i]
        for h in range(heads):
            mean[h] = 0
            for k in range(width):
                dr[h, k] = 0
                if leaky:
                    d_att[i, h, k] = 0
        for e in range(lo, hi):
            _prefetch_row(value_flat, np.int64(indices[min(e + ahead, stop)]), heads * width)
            v = values[np.int64(indices[e])]
            for h in range(heads):
                total = zero
                if edge.size and not leaky:
                    for k in range(width):
                        total += g[h, k] * (v[h, k] + edge[e, h, k])
                else:
                    for k in range(width):
                        total += g[h, k] * v[h, k]
                if keep.size:
                    total *= keep[e, h]
                d_score[e, h] = total
                mean[h] += alpha[e, h] * total
        for e in range(lo, hi):
            if not leaky:
                _prefetch_row(flat, np.int64(indices[min(e + ahead, stop)]), heads * width)
            c = col[np.int64(indices[e])]
            for h in range(heads):
                d = alpha[e, h] * (d_score[e, h] - mean[h]) * scale
                d_score[e, h] = d
                if leaky:
                    da, tilted = d_att[i, h], d * slope
                    if edge.size:
                        for k in range(width):
                            z = r[h, k] + c[h, k] + edge[e, h, k]
                            t = d if z > 0 else tilted
                            dr[h, k] += t * att[h, k]
                            da[k] += t * z
                            d_edge[e, h, k] = t * att[h, k]
                    else:
                        for k in range(width):
                            z = r[h, k] + c[h, k]
                            t = d if z > 0 else tilted
                            dr[h, k] += t * att[h, k]
                            da[k] += t * z
                elif edge.size:
                    a = alpha[e, h] * keep[e, h] if keep.size else alpha[e, h]
                    for k in range(width):
                        dr[h, k] += d * (c[h, k] + edge[e, h, k])
                        d_edge[e, h, k] = d * r[h, k] + a * g[h, k]
                else:
                    for k in range(width):
                        dr[h, k] += d * c[h, k]


@_jit
def pairs_grad_cols(
    indptr: Array, indices: Array, perm: Array, row: Array, col: Array, att: Array, edge: Array, keep: Array,
    slope: Any, alpha: Array, d_score: Array, grad: Array, d_col: Array, d_value: Array, first: int, last: int,
) -> None:  # fmt: skip
    """d col[j] and d value[j], over the transposed arcs; in GATv2 the value is col, and their gradients are one sum."""
    heads, width, stop, flat = row.shape[1], row.shape[2], indices.size - 1, row.reshape(-1)
    ahead, leaky, grad_flat = _ahead(2 * heads * width * row.itemsize), att.size > 0, grad.reshape(-1)
    for j in range(first, last):
        c, dc = col[j], d_col[j]
        for h in range(heads):
            for k in range(width):
                dc[h, k] = 0
                if not leaky:
                    d_value[j, h, k] = 0
        for q in range(indptr[j], indptr[j + 1]):
            soon = np.int64(indices[min(q + ahead, stop)])
            _prefetch_row(flat, soon, heads * width)
            _prefetch_row(grad_flat, soon, heads * width)
            i, e = np.int64(indices[q]), perm[q]
            r, g = row[i], grad[i]
            for h in range(heads):
                a = alpha[e, h] * keep[e, h] if keep.size else alpha[e, h]
                d = d_score[e, h]
                if leaky and edge.size:
                    tilted = d * slope
                    for k in range(width):
                        z = r[h, k] + c[h, k] + edge[e, h, k]
                        dc[h, k] += a * g[h, k] + (d if z > 0 else tilted) * att[h, k]
                elif leaky:
                    tilted = d * slope
                    for k in range(width):
                        z = r[h, k] + c[h, k]
                        dc[h, k] += a * g[h, k] + (d if z > 0 else tilted) * att[h, k]
                else:
                    dv = d_value[j, h]
                    for k in range(width):
                        dc[h, k] += d * r[h, k]
                        dv[k] += a * g[h, k]


@_jit
def arc_max(indptr: Array, indices: Array, x: Array, out: Array, count: Array, first: int, last: int) -> None:
    """out[i, c] = max_e x[j_e, c], 0 without arcs,  count[i, c] = how many arcs reach it; a NaN stays"""
    width, stop, flat, one = x.shape[1], indices.size - 1, x.reshape(-1), x.dtype.type(1)
    ahead, zero = _ahead(width * x.itemsize), x.dtype.type(0)
    for i in range(first, last):
        lo, hi, o, n = indptr[i], indptr[i + 1], out[i], count[i]
        if lo == hi:
            for k in range(width):
                o[k], n[k] = zero, zero
            continue
        v = x[np.int64(indices[lo])]
        for k in range(width):
            o[k], n[k] = v[k], one
        for e in range(lo + 1, hi):
            _prefetch_row(flat, np.int64(indices[min(e + ahead, stop)]), width)
            v = x[np.int64(indices[e])]
            for k in range(width):
                best, new = o[k], v[k]
                higher = (new > best) | (new != new)
                n[k] = one if higher else n[k] + (one if new == best else zero)
                o[k] = new if higher else best


@_jit
def arc_max_grad(
    indptr: Array, indices: Array, x: Array, y: Array, share: Array, out: Array, first: int, last: int
) -> None:
    """out[j, c] = sum over the transposed arcs of share[i, c] where x[j, c] = y[i, c]"""
    width, stop, y_flat, share_flat = x.shape[1], indices.size - 1, y.reshape(-1), share.reshape(-1)
    ahead, zero = _ahead(2 * width * x.itemsize), x.dtype.type(0)
    for j in range(first, last):
        v, o = x[j], out[j]
        for k in range(width):
            o[k] = zero
        for q in range(indptr[j], indptr[j + 1]):
            soon = np.int64(indices[min(q + ahead, stop)])
            _prefetch_row(y_flat, soon, width)
            _prefetch_row(share_flat, soon, width)
            i = np.int64(indices[q])
            best, g = y[i], share[i]
            for k in range(width):
                o[k] += g[k] if v[k] == best[k] else zero
