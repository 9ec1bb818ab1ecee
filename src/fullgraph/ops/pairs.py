"""Attention whose scores compare the rows of a target and a source, without an array of size arcs x heads x columns."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.errors import InputError
from fullgraph.ops.kernels import backend
from fullgraph.ops.operands import Pairs, check_operand
from fullgraph.ops.structure import Structure

SLOPE = 0.2  # negative slope of the LeakyReLU


def attend_pairs(
    structure: Structure, row_RHD: Tensor, col_CHD: Tensor, value_CHD: Tensor | None = None, *,
    att_HD: Tensor | None = None, edge_EHD: Tensor | None = None, keep_EH: Tensor | None = None, scale: float = 1.0,
    slope: float = SLOPE,
) -> Tensor:  # fmt: skip
    """y[i, h] = sum_e keep[e, h] softmax_e(score[e, h]) value[e, h]  over the arcs e into i, with j = j_e and

    with att:  score = sum_d att[h, d] LeakyReLU(row[i, h, d] + col[j, h, d] + edge[e, h, d]),  value = col[j, h]
    without:   score = scale <row[i, h], col[j, h] + edge[e, h]>,  value = value[j, h] + edge[e, h]

    The first is GATv2 (arXiv:2105.14491), the second dot-product attention. `keep` is a constant factor: dropout.
    """
    heads, width = col_CHD.shape[1:]
    given: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("row", row_RHD, (structure.num_rows, heads, width)),
        ("col", col_CHD, (structure.num_cols, heads, width)),
        ("value", value_CHD, (structure.num_cols, heads, width)),
        ("att", att_HD, (heads, width)),
        ("edge", edge_EHD, (structure.num_arcs, heads, width)),
        ("keep", keep_EH, (structure.num_arcs, heads)),
    ]
    for name, value, shape in given:
        if value is not None:
            check_operand(value, shape, name, col_CHD)
    if (att_HD is None) == (value_CHD is None):
        raise InputError("give either att, or the rows of value")
    arrays = [t for _, t, _ in given]
    y: Tensor = _AttendPairs.apply(structure, scale, slope, *arrays)  # type: ignore[no-untyped-call]
    return y


class _AttendPairs(torch.autograd.Function):
    """With alpha the softmax, delta = <dy[i], y[i]> and d score = alpha (keep <dy[i], value> - delta):

    d row[i] and d edge[e] follow over the arcs into i, d col[j] and d value[j] over the arcs out of j.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, s: Structure, scale: float, slope: float, *arrays: Tensor | None) -> Tensor:
        row, col, value, att, edge, keep = (None if t is None else t.contiguous() for t in arrays)
        assert row is not None
        assert col is not None
        p = Pairs(row, col, value, att, edge, keep, scale, slope)
        y_RHD, state = backend(p.col).pairs(s, p)
        ctx.given = s, scale, slope  # type: ignore[attr-defined]
        ctx.save_for_backward(*p[:6], y_RHD, state)  # type: ignore[arg-type]
        return y_RHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RHD: Tensor) -> tuple[Tensor | None, ...]:
        s, scale, slope = ctx.given
        row, col, value, att, edge, keep, y_RHD, state = ctx.saved_tensors
        p = Pairs(row, col, value, att, edge, keep, scale, slope)
        return None, None, None, *backend(p.col).pairs_grad(s, p, y_RHD, state, grad_RHD.contiguous()), None
