"""The torch backend: the reference of every operation, for any device and floating type; never sums in half types."""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from fullgraph.ops.hashing import draws, row_keys, threshold
from fullgraph.ops.lowbit import lowbit_decode as lowbit_decode
from fullgraph.ops.lowbit import lowbit_encode as lowbit_encode
from fullgraph.ops.operands import GateGrads, Gates, PairGrads, Pairs
from fullgraph.ops.structure import Adjacency, Structure

ARCS_AT_ONCE = 2**31 - 1  # maximum arcs that cuSPARSE can count in int32
BLOCK = 1 << 24  # maximum numbers of an intermediate result with one value per (arc, feature)


class ArcBlock(NamedTuple):
    """Some arcs and their rows."""

    arcs: slice
    target: Tensor
    source: Tensor


def arc_blocks(s: Structure, numbers: int) -> Iterator[ArcBlock]:
    """Yield blocks of arcs; their intermediate results have at most `BLOCK` numbers."""
    step = max(1, BLOCK // max(1, numbers))
    for e in range(0, s.num_arcs, step):
        block = slice(e, e + step)
        yield ArcBlock(block, s.rows[block], s.indices[block].long())


def spmm(adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None:
    x_CD = _wide(x_CD)
    if adj.col_scale is not None:
        x_CD = x_CD * adj.col_scale[:, None]
    y_RD = _sum_arcs(adj.structure, adj.weight, x_CD)
    if adj.row_scale is not None:
        y_RD = y_RD * adj.row_scale[:, None]
    if add:
        out_RD.add_(y_RD)
    else:
        out_RD.copy_(y_RD)


def spmm_heads(s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
    alpha_EH, wide_CHD = _ordered(alpha_EH, perm_E), _wide(x_CHD)
    heads = [_sum_arcs(s, alpha_EH[:, h], wide_CHD[:, h]) for h in range(x_CHD.shape[1])]
    return torch.stack(heads, 1).to(x_CHD.dtype)


def arc_dot(s: Structure, left_RHD: Tensor, right_CHD: Tensor) -> Tensor:
    out_EH = right_CHD.new_empty(s.num_arcs, right_CHD.shape[1])
    step = max(1, BLOCK // max(1, right_CHD[:1].numel()))
    for e in range(0, s.num_arcs, step):
        block = slice(e, e + step)
        out_EH[block] = (left_RHD[s.rows[block]] * right_CHD.index_select(0, s.indices[block])).sum(-1)
    return out_EH


def arc_add(s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor:
    return row_RH[s.rows] + col_CH.index_select(0, s.indices)


def arc_sum(s: Structure, perm_E: Tensor | None, values_EH: Tensor) -> Tensor:
    wide_EH = _wide(_ordered(values_EH, perm_E))
    total_RH = wide_EH.new_zeros(s.num_rows, values_EH.shape[1]).index_add_(0, s.rows, wide_EH)
    return total_RH.to(values_EH.dtype)


def softmax(s: Structure, scores_EH: Tensor) -> Tensor:
    wide_EH = _wide(scores_EH)
    lowest = wide_EH.new_full((s.num_rows, scores_EH.shape[1]), -torch.inf)
    top_RH = lowest.scatter_reduce_(0, s.rows[:, None].expand_as(wide_EH), wide_EH, "amax")
    weight_EH = (wide_EH - top_RH[s.rows]).exp()
    return (weight_EH / arc_sum(s, None, weight_EH)[s.rows]).to(scores_EH.dtype)


def softmax_grad(s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor:
    alpha, grad = _wide(alpha_EH), _wide(grad_EH)
    return (alpha * (grad - arc_sum(s, None, alpha * grad)[s.rows])).to(grad_EH.dtype)


def dropout(x_nD: Tensor, ids_n: Tensor, key: int, p: float, relu: bool) -> Tensor:
    a, b = row_keys(key, ids_n)
    columns = torch.arange(x_nD.shape[1], device=x_nD.device)
    drop = draws(a[:, None], b[:, None], columns) < threshold(p)
    return (x_nD * (1 / (1 - p))).masked_fill_(drop | (x_nD <= 0) if relu else drop, 0)


def relu_dropout_grad(grad_nD: Tensor, y_nD: Tensor, p: float) -> Tensor:
    return (grad_nD * (1 / (1 - p))).masked_fill_(y_nD == 0, 0)


def dropout_arcs(s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor:
    a, b = row_keys(key, ids_R)
    drop = draws(a[s.rows], b[s.rows], s.indices.long()) < threshold(p)
    return (values_E * (1 / (1 - p))).masked_fill_(drop, 0)


def add_rows(out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None:
    out_nD.index_add_(0, rows_k, values_kD)


def _compared(p: Pairs, b: ArcBlock) -> Tensor:
    """The operands of an arc's score: the sum of its rows, or the row to multiply with the target's row."""
    other = p.col[b.source] if p.edge is None else p.col[b.source] + p.edge[b.arcs]
    return other if p.att is None else other + p.row[b.target]


def pairs(s: Structure, p: Pairs) -> tuple[Tensor, Tensor]:
    scores_EH = p.col.new_empty(s.num_arcs, p.col.shape[1])
    for b in arc_blocks(s, p.col[:1].numel()):
        z = _compared(p, b)
        score = (z * p.row[b.target]).sum(-1) * p.scale if p.att is None else (leaky_relu(z, p.slope) * p.att).sum(-1)
        scores_EH[b.arcs] = score
    alpha_EH = softmax(s, scores_EH)
    weight_EH = alpha_EH if p.keep is None else alpha_EH * p.keep
    y_RHD = spmm_heads(s, None, weight_EH, p.col if p.value is None else p.value)
    if p.edge is not None and p.att is None:
        for b in arc_blocks(s, p.col[:1].numel()):
            y_RHD.index_add_(0, b.target, p.edge[b.arcs] * weight_EH[b.arcs, :, None])
    return y_RHD, alpha_EH


def pairs_grad(s: Structure, p: Pairs, y_RHD: Tensor, state: Tensor, grad_RHD: Tensor) -> PairGrads:
    alpha_EH = state
    weight_EH = alpha_EH if p.keep is None else alpha_EH * p.keep
    value = p.col if p.value is None else p.value
    d_alpha = arc_dot(s, grad_RHD, value)
    if p.edge is not None and p.att is None:
        for b in arc_blocks(s, p.col[:1].numel()):
            d_alpha[b.arcs] += (grad_RHD[b.target] * p.edge[b.arcs]).sum(-1)
    d_score = softmax_grad(s, alpha_EH, d_alpha if p.keep is None else d_alpha * p.keep)
    row, col = torch.zeros_like(p.row), torch.zeros_like(p.col)
    att = None if p.att is None else torch.zeros_like(p.att)
    edge = None if p.edge is None else torch.empty_like(p.edge)
    for b in arc_blocks(s, p.col[:1].numel()):
        z, d = _compared(p, b), d_score[b.arcs, :, None]
        if p.att is None or att is None:
            row.index_add_(0, b.target, d * p.scale * z)
            to_source = d * p.scale * p.row[b.target]
        else:
            att += (d * leaky_relu(z, p.slope)).sum(0)
            to_source = d * p.att * torch.ones_like(z).masked_fill_(z <= 0, p.slope)
            row.index_add_(0, b.target, to_source)
        col.index_add_(0, b.source, to_source)
        if edge is not None:
            edge[b.arcs] = to_source
            if p.att is None:
                edge[b.arcs] += weight_EH[b.arcs, :, None] * grad_RHD[b.target]
    to_value = spmm_heads(s.T, s.perm, weight_EH, grad_RHD)
    if p.value is None:
        return PairGrads(row, col + to_value, None, att, edge)
    return PairGrads(row, col, to_value, att, edge)


class _Factors(NamedTuple):
    """Both factors of some arcs; None: 1."""

    gate: Tensor
    value: Tensor | None


def _factors(g: Gates, b: ArcBlock) -> _Factors:
    wide = torch.promote_types(g.col.dtype, torch.float32)
    z, edge = g.col[b.source].to(wide), None if g.edge is None else g.edge[b.arcs].to(wide)
    if g.row is not None:
        z = z + g.row[b.target]
    if edge is not None:
        z = z + (edge if g.gate is None else edge @ g.gate.to(wide))
    v = None if g.value is None else g.value[b.source].to(wide)
    if v is not None and edge is not None and g.extra is not None:
        v = v + edge @ g.extra.to(wide)
    return _Factors(z.sigmoid() if g.sigmoid else z.relu(), v)


def gated(s: Structure, g: Gates) -> Tensor:
    width = g.col.shape[1]
    y = torch.zeros(s.num_rows, width, dtype=torch.promote_types(g.col.dtype, torch.float32), device=g.col.device)
    for b in arc_blocks(s, width):
        f = _factors(g, b)
        y.index_add_(0, b.target, f.gate if f.value is None else f.gate * f.value)
    return y.to(g.col.dtype)


def gated_grad(s: Structure, g: Gates, grad_RD: Tensor) -> GateGrads:
    wide = torch.promote_types(g.col.dtype, torch.float32)
    found = [None if t is None else torch.zeros_like(t, dtype=wide) for t in g[:6]]
    col, row, value, edge, gate, extra = found
    assert col is not None
    for b in arc_blocks(s, g.col.shape[1]):
        f, dy = _factors(g, b), grad_RD[b.target].to(wide)
        dz = dy if f.value is None else dy * f.value
        dz = dz * f.gate * (1 - f.gate) if g.sigmoid else dz.masked_fill(f.gate <= 0, 0)
        dv = dy * f.gate
        col.index_add_(0, b.source, dz)
        if row is not None:
            row.index_add_(0, b.target, dz)
        if value is not None:
            value.index_add_(0, b.source, dv)
        if g.edge is None or edge is None:
            continue
        edge[b.arcs] = dz if g.gate is None else dz @ g.gate.to(wide).T
        if gate is not None:
            gate += g.edge[b.arcs].to(wide).T @ dz
        if extra is not None and g.extra is not None:
            extra += g.edge[b.arcs].to(wide).T @ dv
            edge[b.arcs] += dv @ g.extra.to(wide).T
    found[3] = edge if g.edge_grad else None
    return GateGrads(*(None if t is None else t.to(g.col.dtype) for t in found))  # type: ignore[arg-type]


def arc_max(s: Structure, x_CD: Tensor) -> tuple[Tensor, Tensor]:
    y_RD = x_CD.new_zeros(s.num_rows, x_CD.shape[1])
    count_RD = torch.zeros_like(y_RD, dtype=torch.promote_types(x_CD.dtype, torch.float32))
    lowest = x_CD.new_full(y_RD.shape, -torch.inf)
    for b in arc_blocks(s, x_CD.shape[1]):
        lowest.scatter_reduce_(0, b.target[:, None].expand(-1, x_CD.shape[1]), x_CD[b.source], "amax")
    y_RD = torch.where((s.indptr.diff() > 0)[:, None], lowest, y_RD)
    for b in arc_blocks(s, x_CD.shape[1]):
        count_RD.index_add_(0, b.target, (x_CD[b.source] == y_RD[b.target]).to(count_RD.dtype))
    return y_RD, count_RD


def arc_max_grad(s: Structure, x_CD: Tensor, y_RD: Tensor, share_RD: Tensor) -> Tensor:
    wide = torch.promote_types(x_CD.dtype, torch.float32)
    total = torch.zeros_like(x_CD, dtype=wide)
    for b in arc_blocks(s, x_CD.shape[1]):
        reached = x_CD[b.source] == y_RD[b.target]
        total.index_add_(0, b.source, share_RD[b.target].to(wide) * reached)
    return total.to(x_CD.dtype)


def _sum_arcs(s: Structure, weight_E: Tensor | None, x_CD: Tensor) -> Tensor:
    """sum_e weight[e] x[j_e] for each row, without one value per (arc, feature)."""
    if not s.num_arcs or not x_CD.numel():
        return x_CD.new_zeros(s.num_rows, x_CD.shape[1])
    weight_E = None if weight_E is None else weight_E.to(x_CD.dtype).contiguous()
    if x_CD.is_cuda:
        return csr_product(s, weight_E, x_CD)
    return torch.nn.functional.embedding_bag(
        s.indices.long(), x_CD, s.indptr, mode="sum", per_sample_weights=weight_E, include_last_offset=True
    )


def csr_product(s: Structure, weight_E: Tensor | None, x_CD: Tensor, arcs_at_once: int = ARCS_AT_ONCE) -> Tensor:
    """Like `_sum_arcs`, with torch's CSR tensors, cuSPARSE on a GPU. Not for half types, because cuSPARSE sums in their
    type.

    Rows are processed in blocks, so that int32 row pointers suffice and the indices are used without a copy.
    """
    y_RD = x_CD.new_empty(s.num_rows, x_CD.shape[1])
    for first, last, low, high in _blocks(s, arcs_at_once):
        indices = s.indices[low:high]
        values = x_CD.new_ones(indices.numel()) if weight_E is None else weight_E[low:high]
        indptr = (s.indptr[first : last + 1] - low).int()
        with warnings.catch_warnings():  # torch warns that its CSR tensors are in beta
            warnings.simplefilter("ignore")
            block = torch.sparse_csr_tensor(indptr, indices, values, (last - first, s.num_cols), check_invariants=False)
        y_RD[first:last] = block @ x_CD
    return y_RD


def _blocks(s: Structure, arcs_at_once: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield rows [first, last) with their arcs [low, high), at most `arcs_at_once` per block."""
    if s.num_arcs <= arcs_at_once:  # needs no wait for the device
        yield 0, s.num_rows, 0, s.num_arcs
        return
    first = low = 0
    while first < s.num_rows:
        last = int(torch.searchsorted(s.indptr, low + arcs_at_once, right=True)) - 1
        assert last > first, f"row {first} has more than {arcs_at_once} arcs"
        high = int(s.indptr[last])
        yield first, last, low, high
        first, low = last, high


def _wide(x: Tensor) -> Tensor:
    """Return half types as float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _ordered(values_EH: Tensor, perm_E: Tensor | None) -> Tensor:
    return values_EH if perm_E is None else values_EH.index_select(0, perm_E)
