"""The largest or smallest number of every column over a row's arcs."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.errors import InputError
from fullgraph.ops.kernels import backend
from fullgraph.ops.structure import Structure


def arc_max(structure: Structure, x_CD: Tensor, *, zeros: bool = True) -> Tensor:
    """y[i, d] = max over the arcs e into i of x[j_e, d],  0 without arcs.

    Equal arcs share the gradient evenly, as in torch's scatter_reduce, which PyG calls. scatter_reduce starts from
    zeros; a maximum of 0 also gives a share to that zero, so its arcs get less, and this function does the same.
    zeros: with False, the arcs get the whole gradient.
    """
    if x_CD.dim() != 2 or len(x_CD) != structure.num_cols:
        raise InputError(f"x has shape {tuple(x_CD.shape)}; give a row for each column, [{structure.num_cols}, D]")
    y: Tensor = _ArcMax.apply(structure, x_CD, zeros)  # type: ignore[no-untyped-call]
    return y


def arc_min(structure: Structure, x_CD: Tensor, *, zeros: bool = True) -> Tensor:
    """y[i, d] = min over the arcs e into i of x[j_e, d]  =  -max of -x."""
    return -arc_max(structure, -x_CD, zeros=zeros)


class _ArcMax(torch.autograd.Function):
    """d x[j, d] = sum over the arcs with x[j, d] = y[i, d] of dy[i, d] / (arcs that reach y[i, d] + [y[i, d] = 0])"""

    @staticmethod
    def forward(ctx: FunctionCtx, s: Structure, x_CD: Tensor, zeros: bool) -> Tensor:
        x_CD = x_CD.contiguous()
        y_RD, count_RD = backend(x_CD).arc_max(s, x_CD)
        ctx.given = s, zeros  # type: ignore[attr-defined]
        ctx.save_for_backward(x_CD, y_RD, count_RD)
        return y_RD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[None, Tensor, None]:
        x_CD, y_RD, count_RD = ctx.saved_tensors
        s, zeros = ctx.given
        count_RD = count_RD + (y_RD == 0) if zeros else count_RD
        share_RD = (grad_RD / count_RD.clamp(min=1)).to(grad_RD.dtype)
        return None, backend(x_CD).arc_max_grad(s, x_CD, y_RD, share_RD), None
