"""A dense map of dense, sparse or mapped rows.

Legend: n rows, b of them in a block; I in, O out features.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from fullgraph.nn.view import Mapped, Operand
from fullgraph.ops import Adjacency, Drop, dense_kernels, pool, pooled_linear, pools, rows_linear, spmm


def linear(x: Operand, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b."""
    if isinstance(x, Mapped):
        return _mapped_product(x, weight, bias, None)
    if not isinstance(x, Adjacency):
        own = _own_product(x)
        return F.linear(x, weight, bias) if own is None else own(x, weight, bias)
    y = spmm(x, weight.t())
    return y if bias is None else y + bias


def add_linear(y: Tensor, x: Operand, weight: Tensor) -> Tensor:
    """y + x W^T, in place, without a copy of [n, O]."""
    if isinstance(x, Mapped):
        return _mapped_product(x, weight, None, y)
    if isinstance(x, Adjacency):
        return y.add_(linear(x, weight))
    own = _own_product(x)
    return y.addmm_(x, weight.t()) if own is None else own(x, weight, None, y)


def _own_product(x: Tensor) -> Callable[..., Tensor] | None:
    """Our product for such rows, if it is faster than torch's; else None."""
    if dense_kernels(x) is not None:
        return rows_linear
    return pooled_linear if pools(x) else None


class Linear(nn.Linear):
    """y = x W^T + b, where x may be any kind of rows."""

    def forward(self, x: Operand) -> Tensor:
        return linear(x, self.weight, self.bias)

    def product(self, x: Operand) -> Tensor:
        """x W^T without the bias; it commutes with an aggregation."""
        return linear(x, self.weight)


def _mapped_product(x: Mapped, weight: Tensor, bias: Tensor | None, base: Tensor | None) -> Tensor:
    rows, row_map = x.x, x.row_map
    here = rows.device == x.ids.device and row_map.p > 0 and not row_map.relu
    if here and dense_kernels(rows, drop=True) is not None:
        return rows_linear(rows, weight, bias, base, Drop(x.ids, row_map.key, row_map.p))
    y: Tensor = _MappedProduct.apply(x, weight, bias, base)  # type: ignore[no-untyped-call]
    return y


class _MappedProduct(torch.autograd.Function):
    """y = base + x W^T + b,  dW = dy^T x,  block by block of x's rows, which are mapped again in the backward pass."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Mapped, weight_OI: Tensor, bias_O: Tensor | None, base_nO: Tensor | None
    ) -> Tensor:
        ctx.x = x  # type: ignore[attr-defined]
        if base_nO is None:
            out_nO = pool.empty(weight_OI, x.shape[0], weight_OI.shape[0])
        else:
            ctx.mark_dirty(base_nO)
            out_nO = base_nO
        for rows, x_bI in x.blocks():
            if base_nO is not None:
                out_nO[rows].addmm_(x_bI, weight_OI.t())
            elif bias_O is None:
                torch.mm(x_bI, weight_OI.t(), out=out_nO[rows])
            else:
                torch.addmm(bias_O, x_bI, weight_OI.t(), out=out_nO[rows])
        return out_nO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nO: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        _, of_weight, of_bias, of_base = ctx.needs_input_grad
        return (
            None,
            _weight_grad(ctx.x, grad_nO) if of_weight else None,
            grad_nO.sum(0) if of_bias else None,
            grad_nO if of_base else None,
        )


def _weight_grad(x: Mapped, grad_nO: Tensor) -> Tensor:
    """dy^T x, blocks added in order, half types in float32."""
    fine = torch.promote_types(grad_nO.dtype, torch.float32)
    total_OI = grad_nO.new_zeros(grad_nO.shape[1], x.shape[1], dtype=fine)
    for rows, x_bI in x.blocks():
        if fine == grad_nO.dtype:
            total_OI.addmm_(grad_nO[rows].t(), x_bI)
        else:
            total_OI += grad_nO[rows].t() @ x_bI
    return total_OI.to(grad_nO.dtype)
