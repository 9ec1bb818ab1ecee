"""The three steps of attention over arcs: scores, softmax over each row, and the weighted sum of sources."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import leaky_relu

from fullgraph.ops.kernels import Attended, backend, fused_backend
from fullgraph.ops.operands import check_operand
from fullgraph.ops.structure import Structure

SLOPE = 0.2  # negative slope of the LeakyReLU


def edge_scores(structure: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor:
    """score[e, h] = row[i_e, h] + col[j_e, h]  for every arc j_e -> i_e; differentiable in both arguments."""
    check_operand(row_RH, (structure.num_rows, row_RH.shape[-1]), "row")
    check_operand(col_CH, (structure.num_cols, row_RH.shape[-1]), "col", row_RH)
    y: Tensor = _EdgeScores.apply(structure, row_RH, col_CH)  # type: ignore[no-untyped-call]
    return y


def edge_softmax(structure: Structure, scores_EH: Tensor) -> Tensor:
    """alpha[e, h] = exp(score[e, h]) / sum over the arcs of e's row;  shifted by the row's maximum; differentiable."""
    check_operand(scores_EH, (structure.num_arcs, scores_EH.shape[-1]), "scores")
    y: Tensor = _EdgeSoftmax.apply(structure, scores_EH)  # type: ignore[no-untyped-call]
    return y


def spmm_heads(structure: Structure, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
    """y[i, h] = sum_e alpha[e, h] x[j_e, h];  differentiable in alpha and x, without any array of size E x H x D."""
    check_operand(alpha_EH, (structure.num_arcs, alpha_EH.shape[-1]), "alpha")
    check_operand(x_CHD, (structure.num_cols, alpha_EH.shape[-1], x_CHD.shape[-1]), "x", alpha_EH)
    y: Tensor = _SpmmHeads.apply(structure, alpha_EH, x_CHD)  # type: ignore[no-untyped-call]
    return y


def attend(structure: Structure, row_RH: Tensor, col_CH: Tensor, x_CHD: Tensor) -> Tensor:
    """y[i, h] = sum_e softmax_e(LeakyReLU(row[i, h] + col[j_e, h])) x[j_e, h]  over the arcs e into i.

    The scores may have a wider type than x; the softmax uses their type. A GPU stores no value per arc.
    """
    check_operand(row_RH, (structure.num_rows, x_CHD.shape[1]), "row")
    check_operand(col_CH, (structure.num_cols, x_CHD.shape[1]), "col", row_RH)
    check_operand(x_CHD, (structure.num_cols, *x_CHD.shape[1:]), "x")
    if fused_backend(x_CHD) is None:
        scores_EH = leaky_relu(edge_scores(structure, row_RH, col_CH), SLOPE)
        return spmm_heads(structure, edge_softmax(structure, scores_EH).to(x_CHD.dtype), x_CHD)
    leaves = (row_RH, col_CH, x_CHD)
    with_grad = torch.is_grad_enabled() and any(t.requires_grad for t in leaves)
    y: Tensor = _Attend.apply(structure, with_grad, *leaves)  # type: ignore[no-untyped-call]
    return y


class _Attend(torch.autograd.Function):
    """Scores, softmax and sum in one operation; the backward pass recomputes the numbers of arcs."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, s: Structure, with_grad: bool, row_RH: Tensor, col_CH: Tensor, x_CHD: Tensor
    ) -> Tensor:
        kernels = fused_backend(x_CHD)
        assert kernels is not None
        leaves = row_RH.contiguous(), col_CH.contiguous(), x_CHD.contiguous()
        done = kernels.attend(s, *leaves, SLOPE, with_grad)
        ctx.structure = s  # type: ignore[attr-defined]
        ctx.save_for_backward(*leaves, *done)  # type: ignore[arg-type]
        return done.y_RHD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RHD: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        row_RH, col_CH, x_CHD, *done = ctx.saved_tensors
        kernels = fused_backend(x_CHD)
        assert kernels is not None
        leaves = row_RH, col_CH, x_CHD
        grads = kernels.attend_grad(ctx.structure, *leaves, SLOPE, Attended(*done), grad_RHD.contiguous())
        return None, None, *grads


class _EdgeScores(torch.autograd.Function):
    """d row[i] = sum over the arcs into i,   d col[j] = sum over the arcs out of j"""

    @staticmethod
    def forward(ctx: FunctionCtx, s: Structure, row_RH: Tensor, col_CH: Tensor) -> Tensor:
        ctx.structure = s  # type: ignore[attr-defined]
        return backend(row_RH).arc_add(s, row_RH.contiguous(), col_CH.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EH: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        s, kernels, grad_EH = ctx.structure, backend(grad_EH), grad_EH.contiguous()
        row = kernels.arc_sum(s, None, grad_EH) if ctx.needs_input_grad[1] else None
        return None, row, kernels.arc_sum(s.T, s.perm, grad_EH) if ctx.needs_input_grad[2] else None


class _EdgeSoftmax(torch.autograd.Function):
    """d score = alpha (d alpha - sum over the row of alpha d alpha)"""

    @staticmethod
    def forward(ctx: FunctionCtx, s: Structure, scores_EH: Tensor) -> Tensor:
        alpha_EH = backend(scores_EH).softmax(s, scores_EH.contiguous())
        ctx.structure = s  # type: ignore[attr-defined]
        ctx.save_for_backward(alpha_EH)
        return alpha_EH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_EH: Tensor) -> tuple[None, Tensor]:
        (alpha_EH,) = ctx.saved_tensors
        return None, backend(grad_EH).softmax_grad(ctx.structure, alpha_EH, grad_EH.contiguous())


class _SpmmHeads(torch.autograd.Function):
    """d alpha[e, h] = <dy[i_e, h], x[j_e, h]>,   dx = the same product over the transposed arcs"""

    @staticmethod
    def forward(ctx: FunctionCtx, s: Structure, alpha_EH: Tensor, x_CHD: Tensor) -> Tensor:
        alpha_EH, x_CHD = alpha_EH.contiguous(), x_CHD.contiguous()
        ctx.structure = s  # type: ignore[attr-defined]
        ctx.save_for_backward(alpha_EH, x_CHD)
        return backend(x_CHD).spmm_heads(s, None, alpha_EH, x_CHD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RHD: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        alpha_EH, x_CHD = ctx.saved_tensors
        s, kernels, grad_RHD = ctx.structure, backend(grad_RHD), grad_RHD.contiguous()
        d_alpha = kernels.arc_dot(s, grad_RHD, x_CHD) if ctx.needs_input_grad[1] else None
        return None, d_alpha, kernels.spmm_heads(s.T, s.perm, alpha_EH, grad_RHD) if ctx.needs_input_grad[2] else None
