"""Row-wise operations: gather rows of a block, add rows into it, dropout, and layer norm.

Dropout's mask is a pure function of (key, node id, column), so it does not depend on the number of ranks. The backward
pass of a layer norm needs only its input.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from fullgraph.errors import InputError
from fullgraph.ops.kernels import backend, fused_backend
from fullgraph.ops.structure import Structure


def gather_rows(x_nD: Tensor, rows_k: Tensor) -> Tensor:
    """y[k] = x[rows[k]]; no numba loop was faster than torch's selection."""
    return torch.index_select(x_nD, 0, rows_k)


def add_rows(out_nD: Tensor, rows_k: Tensor, values_kD: Tensor) -> None:
    """out[rows[k]] += values[k], in place; the rows are distinct and no gradient flows."""
    with torch.no_grad():
        if out_nD.is_contiguous() and values_kD.numel():
            backend(out_nD).add_rows(out_nD, rows_k, values_kD.to(out_nD.dtype).contiguous())
        else:
            out_nD.index_add_(0, rows_k, values_kD)


Activation = Literal["none", "relu"]


def act_dropout(x_nD: Tensor, ids_n: Tensor, *, key: int, p: float, act: Activation) -> Tensor:
    """y[i, c] = keep(key, ids[i], c) act(x[i, c]) / (1 - p);  p = 0 applies only the activation."""
    if x_nD.dim() != 2:
        raise InputError(f"x has shape {tuple(x_nD.shape)}; dropout needs a row for each id, shape [n, D]")
    _check(ids_n, x_nD.shape[0], p)
    if act not in ("none", "relu"):
        raise InputError(f"activation {act!r} is unknown; use none or relu")
    if p == 0:
        return torch.relu(x_nD) if act == "relu" else x_nD
    function = _ReluDropout if act == "relu" else _Dropout
    y: Tensor = function.apply(x_nD, ids_n.contiguous(), key, p)  # type: ignore[no-untyped-call]
    return y


def dropout_arcs(structure: Structure, ids_R: Tensor, values_E: Tensor, *, key: int, p: float) -> Tensor:
    """Dropout of the entries of a sparse matrix:  v[e] = keep(key, ids[i_e], j_e) values[e] / (1 - p)."""
    _check(ids_R, structure.num_rows, p)
    if values_E.shape != (structure.num_arcs,):
        raise InputError(f"values has shape {tuple(values_E.shape)}; give one for each entry, ({structure.num_arcs},)")
    if p == 0:
        return values_E
    y: Tensor = _DropoutArcs.apply(structure, ids_R.contiguous(), values_E, key, p)  # type: ignore[no-untyped-call]
    return y


class _ReluDropout(torch.autograd.Function):
    """dx = dy / (1 - p) where y != 0; the backward pass needs only the output."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_nD: Tensor, ids_n: Tensor, key: int, p: float) -> Tensor:
        y_nD = backend(x_nD).dropout(x_nD, ids_n, key, p, True)
        ctx.p = p  # type: ignore[attr-defined]
        ctx.save_for_backward(y_nD)
        return y_nD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nD: Tensor) -> tuple[Tensor, None, None, None]:
        (y_nD,) = ctx.saved_tensors
        return backend(grad_nD).relu_dropout_grad(grad_nD.contiguous(), y_nD, ctx.p), None, None, None


class _Dropout(torch.autograd.Function):
    """Multiplication by a diagonal matrix, so the backward pass is the same function of dy."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_nD: Tensor, ids_n: Tensor, key: int, p: float) -> Tensor:
        ctx.law = (key, p)  # type: ignore[attr-defined]
        ctx.save_for_backward(ids_n)
        return backend(x_nD).dropout(x_nD, ids_n, key, p, False)

    @staticmethod
    def backward(ctx: Any, grad_nD: Tensor) -> tuple[Tensor, None, None, None]:
        return _Dropout.apply(grad_nD, *ctx.saved_tensors, *ctx.law), None, None, None  # type: ignore[no-untyped-call]


class _DropoutArcs(torch.autograd.Function):
    """Dropout of the entries of a sparse matrix."""

    @staticmethod
    def forward(ctx: FunctionCtx, s: Structure, ids_R: Tensor, values_E: Tensor, key: int, p: float) -> Tensor:
        ctx.law = (s, ids_R, key, p)  # type: ignore[attr-defined]
        return backend(values_E).dropout_arcs(s, ids_R, values_E.contiguous(), key, p)

    @staticmethod
    def backward(ctx: Any, grad_E: Tensor) -> tuple[None, None, Tensor, None, None]:
        s, ids_R, key, p = ctx.law
        return None, None, dropout_arcs(s, ids_R, grad_E, key=key, p=p), None, None


def _check(ids: Tensor, num_rows: int, p: float) -> None:
    if not 0 <= p < 1:
        raise InputError(f"dropout {p} is outside [0, 1); give the share of numbers to drop, such as 0.5")
    if ids.shape != (num_rows,) or ids.dtype != torch.int64:
        raise InputError(f"ids is {ids.dtype} of shape {tuple(ids.shape)}; give int64 global ids, shape ({num_rows},)")


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
