"""The sparse-dense product  y = M x  (+ base), whose backward pass is the product with M^T."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from fullgraph.errors import InputError
from fullgraph.ops import pool
from fullgraph.ops.kernels import backend
from fullgraph.ops.structure import Adjacency


def spmm(adj: Adjacency, x_CD: Tensor, base_RD: Tensor | None = None) -> Tensor:
    """base + M x;  `base` is updated in place and returned. Differentiable in x and base, not in M."""
    _check(adj, x_CD, base_RD)
    y: Tensor = _Spmm.apply(adj, x_CD, base_RD)  # type: ignore[no-untyped-call]
    return y


class _Spmm(torch.autograd.Function):
    """y = base + M x,   dx = M^T dy,   dbase = dy"""

    @staticmethod
    def forward(ctx: FunctionCtx, adj: Adjacency, x_CD: Tensor, base_RD: Tensor | None) -> Tensor:
        ctx.adj = adj  # type: ignore[attr-defined]
        if base_RD is None:
            out_RD = pool.empty(x_CD, adj.shape[0], x_CD.shape[1])
        else:
            ctx.mark_dirty(base_RD)
            out_RD = base_RD
        direct = out_RD.is_contiguous()
        result = out_RD if direct else out_RD.contiguous()
        x_CD = x_CD.clone() if base_RD is not None and _overlap(x_CD, base_RD) else x_CD.contiguous()
        if adj.structure.num_arcs and result.numel():
            backend(x_CD).spmm(adj, x_CD, result, base_RD is not None)
        elif base_RD is None:
            result.zero_()
        if not direct:
            out_RD.copy_(result)
        return out_RD

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        grad_CD = spmm(ctx.adj.T, grad_RD) if ctx.needs_input_grad[1] else None
        return None, grad_CD, grad_RD if ctx.needs_input_grad[2] else None


def _overlap(x: Tensor, y: Tensor) -> bool:
    return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def _check(adj: Adjacency, x_CD: Tensor, base_RD: Tensor | None) -> None:
    if x_CD.dim() != 2 or x_CD.shape[0] != adj.shape[1]:
        raise InputError(
            f"x has shape {tuple(x_CD.shape)}; give [{adj.shape[1]}, D], a row for each column of the matrix"
        )
    wanted = (adj.shape[0], x_CD.shape[1])
    if base_RD is not None and (base_RD.shape != wanted or base_RD.dtype != x_CD.dtype):
        raise InputError(
            f"base is {base_RD.dtype} of shape {tuple(base_RD.shape)}; give {x_CD.dtype} of shape {wanted}"
        )
    fitting = {x_CD.dtype} | ({torch.float32} if x_CD.dtype.itemsize == 2 else set())  # a matrix may be wider than x
    for part in (adj.weight, adj.row_scale, adj.col_scale):
        if part is not None and part.dtype not in fitting:
            raise InputError(f"the matrix is {part.dtype} and x is {x_CD.dtype}; use adj.to({x_CD.dtype})")
