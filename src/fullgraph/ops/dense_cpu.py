"""Products of many rows with a small matrix on CPUs: torch's product, with results in pooled memory.

Legend: n rows, I in, O out features.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from fullgraph.ops import pool


def pools(x_nI: Tensor) -> bool:
    """Whether pooled memory pays for such rows; autocast chooses types by itself and is not changed."""
    fits = x_nI.device.type == "cpu" and x_nI.dim() == 2 and x_nI.dtype in pool.TYPES and x_nI.nbytes >= pool.LARGE
    return fits and not torch.is_autocast_enabled("cpu")


def pooled_linear(
    x_nI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, base_nO: Tensor | None = None
) -> Tensor:
    """x W^T + b, or base + x W^T in place."""
    assert bias_O is None or base_nO is None
    y: Tensor = _PooledLinear.apply(x_nI, weight_OI, bias_O, base_nO)  # type: ignore[no-untyped-call]
    return y


class _PooledLinear(torch.autograd.Function):
    """y = base + x W^T + b,   dx = dy W,   dW = dy^T x,   db = sum dy,   dbase = dy"""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x_nI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, base_nO: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x_nI, weight_OI)
        if base_nO is not None:
            ctx.mark_dirty(base_nO)
            return base_nO.addmm_(x_nI, weight_OI.t())
        out_nO = pool.empty(x_nI, len(x_nI), len(weight_OI))
        if bias_O is None:
            return torch.mm(x_nI, weight_OI.t(), out=out_nO)
        return torch.addmm(bias_O, x_nI, weight_OI.t(), out=out_nO)

    @staticmethod
    def backward(ctx: Any, grad_nO: Tensor) -> tuple[Tensor | None, ...]:
        x_nI, weight_OI = ctx.saved_tensors
        of_x, of_weight, of_bias, of_base = ctx.needs_input_grad
        grad_nI = None
        if of_x and torch.is_grad_enabled():  # a gradient of the gradient is required
            grad_nI = grad_nO @ weight_OI
        elif of_x:
            grad_nI = torch.mm(grad_nO, weight_OI, out=pool.empty(grad_nO, *x_nI.shape))
        return (
            grad_nI,
            grad_nO.t() @ x_nI if of_weight else None,
            grad_nO.sum(0) if of_bias else None,
            grad_nO if of_base else None,
        )
