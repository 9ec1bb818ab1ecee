"""Products of many rows with a small matrix.

On GPUs: float32 on tensor cores, and dropout of rows while they are read. On CPUs: torch's product, with results in
pooled memory.

Legend: n rows, I in, O out features.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.ops import pool
from fullgraph.ops.kernels import Fused, fused_backend

ALIGNED = 16  # bytes of a thread's widest reads


class Drop(NamedTuple):
    """The arguments of a row dropout by global ids; see ops.act_dropout."""

    ids_n: Tensor
    key: int
    p: float


def dense_kernels(x_nI: Tensor, *, drop: bool = False) -> Fused | None:
    """Return the Triton kernels if they were faster than torch on an H200, else None.

    They are faster for float32 without rounding, and for dropout of rows that can be read 16 bytes at a time.
    """
    if x_nI.dim() != 2 or not x_nI.numel():
        return None
    exact = x_nI.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    faster = _aligned(x_nI) and (exact or x_nI.dtype == torch.bfloat16) if drop else exact
    return fused_backend(x_nI) if faster else None


def aligned_rows(x_nI: Tensor) -> Tensor:
    """Return the rows with starts at multiples of 16 bytes; x itself on a CPU, or if it is aligned already."""
    if not x_nI.is_cuda or _aligned(x_nI):
        return x_nI
    step = ALIGNED // x_nI.element_size()
    n, width = x_nI.shape
    return x_nI.new_zeros(n, -(-width // step) * step)[:, :width].copy_(x_nI)


def _aligned(x_nI: Tensor) -> bool:
    return x_nI.stride(0) * x_nI.element_size() % ALIGNED == 0


def rows_linear(
    x_nI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, base_nO: Tensor | None = None,
    drop: Drop | None = None,
) -> Tensor:  # fmt: skip
    """base + drop(x) W^T + b by the Triton kernels;  `base` is updated in place. Dropped rows have no gradient."""
    y: Tensor = _RowsLinear.apply(x_nI, weight_OI, bias_O, base_nO, drop)  # type: ignore[no-untyped-call]
    return y


class _RowsLinear(torch.autograd.Function):
    """y = base + x W^T + b,   dx = dy W,   dW = dy^T x,   db = sum dy,   dbase = dy"""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x_nI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, base_nO: Tensor | None,
        drop: Drop | None,
    ) -> Tensor:  # fmt: skip
        kernels, x_nI = fused_backend(x_nI), x_nI if x_nI.stride(1) == 1 else x_nI.contiguous()
        assert kernels is not None
        ctx.save_for_backward(x_nI, weight_OI)
        ctx.drop = drop  # type: ignore[attr-defined]
        if base_nO is None:
            out_nO = x_nI.new_empty(len(x_nI), len(weight_OI))
        else:
            ctx.mark_dirty(base_nO)
            out_nO = base_nO
        kernels.rows_times(x_nI, weight_OI.t(), bias_O, out_nO, base_nO is not None, drop)
        return out_nO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nO: Tensor) -> tuple[Tensor | None, ...]:
        x_nI, weight_OI = ctx.saved_tensors
        of_x, of_weight, of_bias, of_base, _ = ctx.needs_input_grad
        kernels, grad_nO = fused_backend(x_nI), grad_nO.contiguous()
        assert kernels is not None
        assert not (of_x and ctx.drop), "dropped rows have no gradient"
        grad_nI = None
        if of_x:
            grad_nI = torch.empty_like(x_nI)
            kernels.rows_times(grad_nO, weight_OI, None, grad_nI, False, None)
        of_weights = None
        if of_weight:
            if ctx.drop is None:
                of_weights = grad_nO.t() @ x_nI
            else:
                of_weights = kernels.rows_against_rows(grad_nO, x_nI, ctx.drop).to(weight_OI.dtype)
        return grad_nI, of_weights, grad_nO.sum(0) if of_bias else None, grad_nO if of_base else None, None


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
