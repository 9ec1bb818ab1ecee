"""The numba backend: passes tensors to the loops as arrays, in chunks of rows."""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from fullgraph.ops import loops, loops_gates, loops_lowbit, loops_pairs, pool
from fullgraph.ops.hashing import mixed_key, row_keys, threshold
from fullgraph.ops.operands import GateGrads, Gates, PairGrads, Pairs
from fullgraph.ops.parallel import balanced_cuts, even_cuts, num_chunks, run
from fullgraph.ops.structure import Adjacency, Structure

EXP_COST = 16  # cost of an exponential in multiply-adds
HASH_COST = 4
POLL_S = 0.01  # between two tries to lock the cache
SHARES = 16  # parts of a sum over all arcs


def spmm(adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None:
    s, none = adj.structure, torch.empty(0, dtype=x_CD.dtype)
    factors = (none if t is None else t for t in (adj.weight, adj.row_scale, adj.col_scale))
    _run(loops.spmm, s.cuts(x_CD.shape[1]), s.indptr, s.indices, *factors, x_CD, out_RD, add)


def spmm_heads(s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
    out = pool.empty(x_CHD, s.num_rows, *x_CHD.shape[1:])
    cuts = s.cuts(x_CHD.shape[1] * x_CHD.shape[2])
    _run(loops.spmm_heads, cuts, s.indptr, s.indices, _given(perm_E), alpha_EH, x_CHD, out)
    return out


def arc_dot(s: Structure, left_RHD: Tensor, right_CHD: Tensor) -> Tensor:
    out = right_CHD.new_empty(s.num_arcs, right_CHD.shape[1])
    cuts = s.cuts(right_CHD.shape[1] * right_CHD.shape[2])
    _run(loops.arc_dot, cuts, s.indptr, s.indices, left_RHD, right_CHD, out)
    return out


def arc_add(s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor:
    out = row_RH.new_empty(s.num_arcs, row_RH.shape[1])
    _run(loops.arc_add, s.cuts(row_RH.shape[1]), s.indptr, s.indices, row_RH, col_CH, out)
    return out


def arc_sum(s: Structure, perm_E: Tensor | None, values_EH: Tensor) -> Tensor:
    out = values_EH.new_empty(s.num_rows, values_EH.shape[1])
    _run(loops.arc_sum, s.cuts(values_EH.shape[1]), s.indptr, _given(perm_E), values_EH, out)
    return out


def softmax(s: Structure, scores_EH: Tensor) -> Tensor:
    out = torch.empty_like(scores_EH)
    _run(loops.softmax, s.cuts(scores_EH.shape[1] * EXP_COST), s.indptr, scores_EH, out)
    return out


def softmax_grad(s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor:
    out = torch.empty_like(grad_EH)
    _run(loops.softmax_grad, s.cuts(grad_EH.shape[1] * 2), s.indptr, alpha_EH, grad_EH, out)
    return out


def pairs(s: Structure, p: Pairs) -> tuple[Tensor, Tensor]:
    heads, width = p.col.shape[1:]
    alpha, out = p.col.new_empty(s.num_arcs, heads), pool.empty(p.col, s.num_rows, heads, width)
    cuts = s.cuts(heads * (3 * width + EXP_COST))
    _run(loops_pairs.pairs, cuts, s.indptr, s.indices, *_operands(p), *_factors(p), alpha, out)
    return out, alpha


def pairs_grad(s: Structure, p: Pairs, y_RHD: Tensor, state: Tensor, grad_RHD: Tensor) -> PairGrads:
    alpha_EH, cuts, dots = state, s.cuts(4 * p.col[0].numel() if len(p.col) else 1), p.att is None
    row, col = pool.empty(p.row, *p.row.shape), pool.empty(p.col, *p.col.shape)
    value = pool.empty(p.col, *p.col.shape) if dots else p.col.new_empty(0, 0, 0)
    att = p.col.new_empty(0, 0, 0) if dots else pool.empty(p.row, *p.row.shape)
    edge = p.col.new_empty(0, 0, 0) if p.edge is None else torch.empty_like(p.edge)
    score, operands, (scale, slope) = torch.empty_like(alpha_EH), _operands(p), _factors(p)
    _run(
        loops_pairs.pairs_grad_rows, cuts, s.indptr, s.indices, *operands, scale, slope, alpha_EH, grad_RHD, row, att,
        edge, score,
    )  # fmt: skip
    cuts = s.T.cuts(4 * p.col[0].numel() if len(p.col) else 1)
    _run(
        loops_pairs.pairs_grad_cols, cuts, s.T.indptr, s.T.indices, s.perm, *operands[:2], *operands[3:], slope,
        alpha_EH, score, grad_RHD, col, value,
    )  # fmt: skip
    return PairGrads(row, col, value if dots else None, None if dots else att.sum(0), None if p.edge is None else edge)


def gated(s: Structure, g: Gates) -> Tensor:
    out, cuts = pool.empty(g.col, s.num_rows, g.col.shape[1]), s.cuts(g.col.shape[1] * _gate_cost(g))
    _run(loops_gates.gated, cuts, s.indptr, s.indices, *_gate_operands(g), g.sigmoid, out)
    return out


def gated_grad(s: Structure, g: Gates, grad_RD: Tensor) -> GateGrads:
    operands, cost, none = _gate_operands(g), g.col.shape[1] * _gate_cost(g), g.col.new_empty(0, 0)
    row = None if g.row is None else pool.empty(g.col, *g.row.shape)
    edge = torch.empty_like(g.edge) if g.edge is not None and g.edge_grad else None
    cuts = balanced_cuts(s.indptr.numpy(), SHARES)  # independent of the number of threads, so that sums are equal
    gate, extra = (None if t is None else g.col.new_zeros(SHARES, *t.shape) for t in (g.gate, g.extra))
    if row is not None or g.edge is not None:
        shares = (g.col.new_empty(0, 0, 0) if t is None else t for t in (gate, extra))
        _run(
            loops_gates.gated_grad_rows, cuts, s.indptr, s.indices, *operands, g.sigmoid, grad_RD, torch.tensor(cuts),
            *(none if t is None else t for t in (row, edge)), *shares,
        )  # fmt: skip
    col, value = pool.empty(g.col, *g.col.shape), None if g.value is None else pool.empty(g.col, *g.col.shape)
    perm = torch.empty(0, dtype=torch.int32) if g.edge is None else s.perm
    _run(
        loops_gates.gated_grad_cols, s.T.cuts(cost), s.T.indptr, s.T.indices, perm, *operands, g.sigmoid, grad_RD, col,
        none if value is None else value,
    )  # fmt: skip
    return GateGrads(col, row, value, edge, *(None if t is None else t.sum(0) for t in (gate, extra)))


def arc_max(s: Structure, x_CD: Tensor) -> tuple[Tensor, Tensor]:
    out, count = (pool.empty(x_CD, s.num_rows, x_CD.shape[1]) for _ in range(2))
    _run(loops_pairs.arc_max, s.cuts(2 * x_CD.shape[1]), s.indptr, s.indices, x_CD, out, count)
    return out, count


def arc_max_grad(s: Structure, x_CD: Tensor, y_RD: Tensor, share_RD: Tensor) -> Tensor:
    out = pool.empty(x_CD, *x_CD.shape)
    _run(loops_pairs.arc_max_grad, s.T.cuts(2 * x_CD.shape[1]), s.T.indptr, s.T.indices, x_CD, y_RD, share_RD, out)
    return out


def dropout(x_nD: Tensor, ids_n: Tensor, key: int, p: float, relu: bool) -> Tensor:
    x_nD = x_nD.contiguous()
    out = pool.empty(x_nD, *x_nD.shape)
    _run(loops.dropout, _even(x_nD, HASH_COST), x_nD, ids_n, *_law(key, p, x_nD.dtype), relu, out)
    return out


def relu_dropout_grad(grad_nD: Tensor, y_nD: Tensor, p: float) -> Tensor:
    out = pool.empty(grad_nD, *grad_nD.shape)
    flat = (t.view(-1) for t in (grad_nD, y_nD))
    cuts = even_cuts(out.numel(), num_chunks(out.numel()))
    _run(loops.relu_dropout_grad, cuts, *flat, _scale(p, out.dtype), out.view(-1))
    return out


def dropout_arcs(s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor:
    out = torch.empty_like(values_E)
    _run(loops.dropout_arcs, s.cuts(HASH_COST), s.indptr, s.indices, ids_R, values_E, *_law(key, p, out.dtype), out)
    return out


def add_rows(out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None:
    _run(loops.add_rows, _even(values_kD), out_nD, rows_k, values_kD)


def lowbit_encode(x_nD: Tensor, key: int, bits: int, wire_nW: Tensor) -> None:
    keys_n2 = torch.stack(row_keys(key, torch.arange(x_nD.shape[0])), 1).int().view(torch.uint32)
    _run(loops_lowbit.encode, _even(x_nD, HASH_COST), x_nD, x_nD.view(torch.int32), keys_n2, bits, wire_nW)


def lowbit_decode(wire_nW: Tensor, bits: int, out_nD: Tensor) -> None:
    _run(loops_lowbit.decode, _even(out_nD), wire_nW, bits, out_nD)


def warm_up() -> None:
    """Load the loops that most runs need from numba's cache, or compile them; a single row starts no thread."""
    x, row = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
    spmm(Adjacency(Structure(torch.tensor([0, 1]), row.int(), 1)), x, x.clone(), False)
    relu_dropout_grad(x, dropout(x, row, 0, 0.5, True), 0.5)
    add_rows(x, row, x.clone())


def _given(perm_E: Tensor | None) -> Tensor:
    return torch.empty(0, dtype=torch.int32) if perm_E is None else perm_E


def _operands(p: Pairs) -> tuple[Tensor, ...]:
    def given(t: Tensor | None, dims: int) -> Tensor:
        return p.col.new_empty((0,) * dims) if t is None else t

    return p.row, p.col, given(p.value, 3), given(p.att, 2), given(p.edge, 3), given(p.keep, 2)


def _gate_operands(g: Gates) -> tuple[Tensor, ...]:
    return tuple(g.col.new_empty(0, 0) if t is None else t for t in (g.row, g.col, *g[2:6]))


def _gate_cost(g: Gates) -> int:
    return (EXP_COST if g.sigmoid else 2) + (0 if g.gate is None else 2 * len(g.gate))


def _factors(p: Pairs) -> tuple[Any, Any]:
    kind = np.float32 if p.col.dtype == torch.float32 else np.float64
    return kind(p.scale), kind(p.slope)


def _even(x_nD: Tensor, cost: int = 1) -> Sequence[int]:
    return even_cuts(x_nD.shape[0], num_chunks(x_nD.numel() * cost))


def _scale(p: float, dtype: torch.dtype) -> Any:
    # A scalar of the tensor's type: a Python float would widen every product to float64.
    return (np.float32 if dtype == torch.float32 else np.float64)(1.0 / (1.0 - p))


def _law(key: int, p: float, dtype: torch.dtype) -> tuple[np.uint64, np.uint32, Any]:
    return np.uint64(mixed_key(key)), np.uint32(threshold(p)), _scale(p, dtype)


def _run(loop: Any, cuts: Sequence[int], *args: Any) -> None:
    """Run `loop` over chunks of rows; tensors must be contiguous and are passed as arrays without a copy."""
    arrays = tuple(a.detach().numpy() if isinstance(a, Tensor) else a for a in args)
    kinds = (loop, *map(_kind, arrays))
    if kinds not in _COMPILED:
        _compile(loop, tuple(numba.typeof(a) for a in arrays))
        _COMPILED.add(kinds)
    run(lambda first, last: loop(*arrays, first, last), cuts)


_COMPILED: set[tuple[Any, ...]] = set()


def _kind(a: Any) -> Any:
    """Return a key for numba's type of a value; asking numba takes longer than a loop over a small graph."""
    if isinstance(a, np.ndarray):
        return a.dtype, a.ndim, a.flags.c_contiguous, a.flags.writeable
    return numba.typeof(a)


@cache
def _compile(loop: Any, types: tuple[Any, ...]) -> None:
    with _one_process_at_a_time(loop.stats.cache_path):
        loop.compile((*types, numba.int64, numba.int64))


def _locked(handle: int) -> bool:
    """Try to lock an open file; False while another process has the lock."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _one_process_at_a_time(folder: str | None) -> Iterator[None]:
    """Let the ranks of a machine share one compilation; numba's cache files must not have two writers."""
    lock = None
    with suppress(ImportError, OSError):  # without locks, or without a writable folder, each process compiles
        if folder is not None:
            path = os.path.join(folder, "fullgraph.lock")
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            if stat.S_IMODE(os.fstat(lock).st_mode) & 0o077:  # another user could open the file and lock it forever
                os.fchmod(lock, 0o600)
            while not _locked(lock):
                time.sleep(POLL_S)  # a process that slept in the kernel would seem to be stopped (proc.py)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
