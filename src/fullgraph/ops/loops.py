"""The numba loops: each computes rows [first, last) of its result, releases the GIL and allocates almost nothing.

An empty array means an absent argument, so that one compiled version serves every combination.
All loops are in this file because numba's cache detects changes only in the file that contains a loop.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fullgraph.compiled import Array, compiled, inlined

Index = int | np.int64

AHEAD_MIN, AHEAD_MAX = 4, 32  # number of arcs between the prefetch of a source row and its use
AHEAD_BYTES = 8192  # bytes being prefetched, which determine that number
GOLD32, GOLD64 = np.uint32(0x9E3779B9), np.uint64(0x9E3779B97F4A7C15)

# No nnan or ninf: a diverged run must show its NaNs. Reassociation is fixed at compile time, so reruns agree.
_jit = compiled(fastmath={"contract", "reassoc"})


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_: Any, array: Any, offset: Any) -> Any:
    """Prefetch the cache line of array[offset]; a hint only, so an offset past the end is harmless."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        read, keep, data_cache = cgutils.int32_t(0), cgutils.int32_t(3), cgutils.int32_t(1)
        shape = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[cgutils.int32_t] * 3])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], shape)
        builder.call(hint, [pointer, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, offset), codegen


@inlined
def _prefetch_row(flat: Array, row: Index, width: int) -> None:
    line = 64 // flat.itemsize
    for k in range(row * width, (row + 1) * width, line):
        _prefetch(flat, k)


@_jit
def _ahead(width_bytes: int) -> int:
    return min(AHEAD_MAX, max(AHEAD_MIN, AHEAD_BYTES // max(1, width_bytes)))


@_jit
def spmm(
    indptr: Array, indices: Array, weight: Array, row_scale: Array, col_scale: Array,
    x: Array, out: Array, add: bool, first: int, last: int,
) -> None:  # fmt: skip
    """out[i] = (add ? out[i] : 0) + sum_e row_scale[i] weight[e] col_scale[j_e] x[j_e]"""
    width, stop, flat, one = x.shape[1], indices.size - 1, x.reshape(-1), x.dtype.type(1)
    ahead = _ahead(width * x.itemsize)
    for i in range(first, last):
        o = out[i]
        if not add:
            for k in range(width):
                o[k] = 0
        r = row_scale[i] if row_scale.size else one
        e, end = indptr[i], indptr[i + 1]
        # Two arcs per turn: half the loads and stores of the accumulating row.
        while e + 1 < end:
            j0, j1 = np.int64(indices[e]), np.int64(indices[e + 1])
            _prefetch_row(flat, np.int64(indices[min(e + ahead, stop)]), width)
            _prefetch_row(flat, np.int64(indices[min(e + ahead + 1, stop)]), width)
            x0, x1 = x[j0], x[j1]
            v0 = r * weight[e] if weight.size else r
            v1 = r * weight[e + 1] if weight.size else r
            if col_scale.size:
                v0 *= col_scale[j0]
                v1 *= col_scale[j1]
            for k in range(width):
                o[k] += v0 * x0[k] + v1 * x1[k]
            e += 2
        if e < end:
            j0 = np.int64(indices[e])
            _prefetch_row(flat, np.int64(indices[min(e + ahead, stop)]), width)
            x0 = x[j0]
            v0 = r * weight[e] if weight.size else r
            if col_scale.size:
                v0 *= col_scale[j0]
            for k in range(width):
                o[k] += v0 * x0[k]


@_jit
def spmm_heads(
    indptr: Array, indices: Array, perm: Array, alpha: Array, x: Array, out: Array, first: int, last: int
) -> None:
    """out[i, h] = sum_e alpha[perm[e], h] x[j_e, h]"""
    heads, width, stop, flat, alpha_flat = x.shape[1], x.shape[2], indices.size - 1, x.reshape(-1), alpha.reshape(-1)
    ahead = _ahead(heads * width * x.itemsize)
    for i in range(first, last):
        o = out[i]
        for h in range(heads):
            for k in range(width):
                o[h, k] = 0
        e, end = indptr[i], indptr[i + 1]
        while e < end:
            paired = e + 1 < end
            for q in range(e, e + 1 + paired):
                soon = min(q + ahead, stop)
                _prefetch_row(flat, np.int64(indices[soon]), heads * width)
                if perm.size:
                    _prefetch_row(alpha_flat, np.int64(perm[soon]), heads)
            a0, x0 = alpha[perm[e] if perm.size else e], x[np.int64(indices[e])]
            if paired:
                a1, x1 = alpha[perm[e + 1] if perm.size else e + 1], x[np.int64(indices[e + 1])]
                for h in range(heads):
                    v0, v1 = a0[h], a1[h]
                    for k in range(width):
                        o[h, k] += v0 * x0[h, k] + v1 * x1[h, k]
            else:
                for h in range(heads):
                    v0 = a0[h]
                    for k in range(width):
                        o[h, k] += v0 * x0[h, k]
            e += 2


@_jit
def arc_dot(indptr: Array, indices: Array, left: Array, right: Array, out: Array, first: int, last: int) -> None:
    """out[e, h] = <left[i_e, h], right[j_e, h]>"""
    heads, width, stop, flat = right.shape[1], right.shape[2], indices.size - 1, right.reshape(-1)
    ahead = _ahead(heads * width * right.itemsize)
    for i in range(first, last):
        for e in range(indptr[i], indptr[i + 1]):
            _prefetch_row(flat, np.int64(indices[min(e + ahead, stop)]), heads * width)
            row = right[np.int64(indices[e])]
            for h in range(heads):
                a, b = left[i, h], row[h]
                total = right.dtype.type(0)
                for k in range(width):
                    total += a[k] * b[k]
                out[e, h] = total


@_jit
def arc_add(indptr: Array, indices: Array, row: Array, col: Array, out: Array, first: int, last: int) -> None:
    """out[e, h] = row[i_e, h] + col[j_e, h]"""
    for i in range(first, last):
        for e in range(indptr[i], indptr[i + 1]):
            j = np.int64(indices[e])
            for h in range(out.shape[1]):
                out[e, h] = row[i, h] + col[j, h]


@_jit
def arc_sum(indptr: Array, perm: Array, values: Array, out: Array, first: int, last: int) -> None:
    """out[i, h] = sum_e values[perm[e], h]"""
    for i in range(first, last):
        for h in range(out.shape[1]):
            out[i, h] = 0
        for e in range(indptr[i], indptr[i + 1]):
            v = values[perm[e] if perm.size else e]
            for h in range(v.size):
                out[i, h] += v[h]


@_jit
def softmax(indptr: Array, scores: Array, out: Array, first: int, last: int) -> None:
    """out[e, h] = exp(s[e, h] - m_h) / sum_row exp(s - m_h),  m_h = max_row s[., h]"""
    heads = scores.shape[1]
    top, total = np.empty(heads, scores.dtype), np.empty(heads, scores.dtype)
    for i in range(first, last):
        lo, hi = indptr[i], indptr[i + 1]
        if lo == hi:
            continue
        for h in range(heads):
            top[h], total[h] = scores[lo, h], 0
        for e in range(lo + 1, hi):
            for h in range(heads):
                top[h] = max(top[h], scores[e, h])
        for e in range(lo, hi):
            for h in range(heads):
                out[e, h] = math.exp(scores[e, h] - top[h])
                total[h] += out[e, h]
        for e in range(lo, hi):
            for h in range(heads):
                out[e, h] /= total[h]


@_jit
def softmax_grad(indptr: Array, alpha: Array, grad: Array, out: Array, first: int, last: int) -> None:
    """out[e, h] = alpha[e, h] (grad[e, h] - sum_row alpha grad)"""
    heads = alpha.shape[1]
    mean = np.empty(heads, alpha.dtype)
    for i in range(first, last):
        for h in range(heads):
            mean[h] = 0
        for e in range(indptr[i], indptr[i + 1]):
            for h in range(heads):
                mean[h] += alpha[e, h] * grad[e, h]
        for e in range(indptr[i], indptr[i + 1]):
            for h in range(heads):
                out[e, h] = alpha[e, h] * (grad[e, h] - mean[h])


@_jit
def _mix64(z: np.uint64) -> np.uint64:
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
    return np.uint64(z ^ (z >> np.uint64(31)))


@_jit
def _row_key(key: np.uint64, node: np.int64) -> np.uint64:
    return _mix64(_mix64(np.uint64(node) + GOLD64) ^ key)


@_jit
def _draw(row_key: np.uint64, column: int) -> np.uint32:
    # numba widens 32-bit results to 64 bits; casting back lets LLVM keep 32-bit lanes.
    h = np.uint32(np.uint32(np.uint32(column) * GOLD32) + np.uint32(row_key))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
    h = np.uint32(h ^ np.uint32(row_key >> np.uint64(32)))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(h ^ (h >> np.uint32(16)))


@_jit
def dropout(
    x: Array, ids: Array, key: np.uint64, threshold: np.uint32, scale: Array, relu: bool, out: Array,
    first: int, last: int,
) -> None:  # fmt: skip
    """out[i, c] = scale x[i, c] where draw(key, ids[i], c) >= threshold (and x > 0 for relu), else 0"""
    for i in range(first, last):
        row_key = _row_key(key, ids[i])
        for c in range(x.shape[1]):
            v = x[i, c]
            drop = _draw(row_key, c) < threshold or (relu and v <= 0)
            out[i, c] = x.dtype.type(0) if drop else v * scale


@_jit
def relu_dropout_grad(grad: Array, y: Array, scale: Array, out: Array, first: int, last: int) -> None:
    """out = scale grad where y != 0, else 0; flat arrays"""
    # Slices, because vectorising needs indices that are known to be non-negative, as are those that start at 0.
    grad, y, out = grad[first:last], y[first:last], out[first:last]
    for k in range(out.size):
        out[k] = grad[k] * scale if y[k] != 0 else grad.dtype.type(0)


@_jit
def dropout_arcs(
    indptr: Array, indices: Array, ids: Array, values: Array, key: np.uint64, threshold: np.uint32, scale: Array,
    out: Array, first: int, last: int,
) -> None:  # fmt: skip
    """out[e] = scale values[e] where draw(key, ids[i_e], j_e) >= threshold, else 0"""
    for i in range(first, last):
        row_key = _row_key(key, ids[i])
        for e in range(indptr[i], indptr[i + 1]):
            keep = _draw(row_key, indices[e]) >= threshold
            out[e] = values[e] * scale if keep else values.dtype.type(0)


@_jit
def add_rows(out: Array, rows: Array, values: Array, first: int, last: int) -> None:
    """out[rows[k]] += values[k]"""
    for k in range(first, last):
        o, v = out[rows[k]], values[k]
        for c in range(v.size):
            o[c] += v[c]
