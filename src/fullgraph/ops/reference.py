"""The torch backend: the meaning of every operation, for any device and floating type."""

import torch
from torch import Tensor

from fullgraph.ops.hashing import draws, row_keys, threshold
from fullgraph.ops.lowbit import lowbit_decode as lowbit_decode
from fullgraph.ops.lowbit import lowbit_encode as lowbit_encode
from fullgraph.ops.structure import Adjacency, Structure

BLOCK = 1 << 24  # numbers that an intermediate of one value per (arc, feature) may hold


def spmm(adj: Adjacency, x_CD: Tensor, out_RD: Tensor, add: bool) -> None:
    if adj.col_scale is not None:
        x_CD = x_CD * adj.col_scale[:, None]
    y_RD = _bag(adj.structure, adj.weight, x_CD)
    if adj.row_scale is not None:
        y_RD = y_RD * adj.row_scale[:, None]
    if add:
        out_RD.add_(y_RD)
    else:
        out_RD.copy_(y_RD)


def spmm_heads(s: Structure, perm_E: Tensor | None, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
    alpha_EH = _ordered(alpha_EH, perm_E)
    return torch.stack([_bag(s, alpha_EH[:, h], x_CHD[:, h]) for h in range(x_CHD.shape[1])], 1)


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
    return values_EH.new_zeros(s.num_rows, values_EH.shape[1]).index_add_(0, s.rows, _ordered(values_EH, perm_E))


def softmax(s: Structure, scores_EH: Tensor) -> Tensor:
    lowest = scores_EH.new_full((s.num_rows, scores_EH.shape[1]), -torch.inf)
    top_RH = lowest.scatter_reduce_(0, s.rows[:, None].expand_as(scores_EH), scores_EH, "amax")
    weight_EH = (scores_EH - top_RH[s.rows]).exp()
    return weight_EH / arc_sum(s, None, weight_EH)[s.rows]


def softmax_grad(s: Structure, alpha_EH: Tensor, grad_EH: Tensor) -> Tensor:
    return alpha_EH * (grad_EH - arc_sum(s, None, alpha_EH * grad_EH)[s.rows])


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


def _bag(s: Structure, weight_E: Tensor | None, x_CD: Tensor) -> Tensor:
    """sum_e weight[e] x[j_e] for each row: torch's embedding bag is that product without a value per (arc, feature)."""
    if not s.num_arcs or not x_CD.numel():
        return x_CD.new_zeros(s.num_rows, x_CD.shape[1])
    weight_E = None if weight_E is None else weight_E.contiguous()
    return torch.nn.functional.embedding_bag(
        s.indices.long(), x_CD, s.indptr, mode="sum", per_sample_weights=weight_E, include_last_offset=True
    )


def _ordered(values_EH: Tensor, perm_E: Tensor | None) -> Tensor:
    return values_EH if perm_E is None else values_EH.index_select(0, perm_E)
