"""Layer norm with a backward pass that needs only its input."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.errors import InputError
from fullgraph.ops.kernels import fused_backend

WIDEST = 4096  # longest row that a program of the kernel holds


def layer_norm(x_nD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """y[i] = (x[i] - mean_i) / sqrt(variance_i + eps) * weight + bias, mean and variance over the D columns of row i.

    Weights may have a wider type than rows. Without Triton kernels, torch computes it.
    """
    if x_nD.dim() != 2 or weight_D.shape != x_nD.shape[1:] or bias_D.shape != x_nD.shape[1:]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x_nD, weight_D, bias_D))
        raise InputError(f"x, weight and bias have shapes {shapes}; layer norm needs [n, D], [D] and [D]")
    if fused_backend(x_nD) is None or not 1 <= x_nD.shape[1] <= WIDEST:
        fine = torch.promote_types(x_nD.dtype, weight_D.dtype)  # on a GPU torch requires a single type
        return torch.nn.functional.layer_norm(x_nD.to(fine), x_nD.shape[1:], weight_D, bias_D, eps).to(x_nD.dtype)
    y: Tensor = _LayerNorm.apply(x_nD, weight_D, bias_D, eps)  # type: ignore[no-untyped-call]
    return y


class _LayerNorm(torch.autograd.Function):
    """Keeps x; the backward pass recomputes the normalised rows."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_nD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
        kernels, x_nD = fused_backend(x_nD), x_nD.contiguous()
        assert kernels is not None
        ctx.eps = eps  # type: ignore[attr-defined]
        ctx.save_for_backward(x_nD, weight_D)
        return kernels.layer_norm(x_nD, weight_D.contiguous(), bias_D.contiguous(), eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x_nD, weight_D = ctx.saved_tensors
        kernels = fused_backend(x_nD)
        assert kernels is not None
        grad, weight, bias = kernels.layer_norm_grad(grad_nD.contiguous(), x_nD, weight_D.contiguous(), ctx.eps)
        return grad, weight.to(weight_D.dtype), bias.to(weight_D.dtype), None
