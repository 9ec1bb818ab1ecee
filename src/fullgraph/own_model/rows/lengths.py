"""Norms of vectors and matrices over rows of all ranks, equal to torch's norms over all rows in one process.

Legend: x rows, p the order of a norm.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import rows_of
from fullgraph.own_model.rows.sums import Dims, extreme, in_float32, over, root, total

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

INFINITE = float("inf")


@in_float32
def norm(forward: "Forward", x: Tensor, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """(sum |x|^p)^(1/p); for p = inf and -inf the largest and smallest |x|, for p = 0 the number of nonzero entries."""
    found = over(x, dim)
    if found is None:
        return NotImplemented
    x, dims = x if dtype is None else x.to(dtype), found[1]
    if p == "nuc":
        _refuse_order(p)
    x = x.abs() if x.is_complex() else x
    power = 2.0 if p in ("fro", None) else float(p)
    if abs(power) == INFINITE:
        return extreme(forward, x.abs(), dims, keepdim, largest=power > 0)
    if power == 0:
        return total(forward, (x != 0).to(x.dtype), dims, keepdim)
    return root(total(forward, x.square() if power == 2 else x.abs() ** power, dims, keepdim), power)


def vector_norm(
    forward: "Forward", x: Tensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return norm(forward, x, ord, dim, keepdim, dtype)


def linalg_norm(
    forward: "Forward", A: Tensor, ord: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """A matrix norm if an order and two dimensions are given, else a vector norm."""
    two = A.dim() == 2 if dim is None else not isinstance(dim, int) and len(dim) == 2
    if ord is None or not two:
        return norm(forward, A, 2 if ord is None else ord, dim, keepdim, dtype)
    return matrix_norm(forward, A, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype)


def matrix_norm(
    forward: "Forward", A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """For 1 (-1) the largest (smallest) sum of |x| over a column, for inf (-inf) over a row; for fro over all
    numbers.
    """
    rows, (first, second) = rows_of(A), (d % A.dim() for d in dim)
    if rows is None or rows.dim not in (first, second):
        return NotImplemented
    if ord == "fro":
        return norm(forward, A, 2, (first, second), keepdim, dtype)
    if ord not in (1, -1, INFINITE, -INFINITE):
        _refuse_order(ord)
    summed, compared = (first, second) if abs(ord) == 1 else (second, first)
    x = (A if dtype is None else A.to(dtype)).abs()
    x = total(forward, x, [summed], True) if rows.dim == summed else x.sum(summed, keepdim=True)
    if rows.dim == compared:
        out = extreme(forward, x, [compared], True, largest=ord > 0)
    else:
        out = x.amax(compared, keepdim=True) if ord > 0 else x.amin(compared, keepdim=True)
    return out if keepdim else out.squeeze((first, second))


def _refuse_order(order: Any) -> None:
    refuse(f"a norm of order {order} over rows of all ranks needs all of them in one place; use order 2 of a vector")


def normalize(
    forward: "Forward", input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Any:
    length = norm(forward, input, p, dim, True)
    if length is NotImplemented:
        return length
    return forward.as_rows(input / length.clamp_min(eps), rows_of(input))


_T = Tensor
LENGTHS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.norm, _T.norm), norm),
    torch.linalg.vector_norm: vector_norm,
    torch.linalg.norm: linalg_norm,
    torch.linalg.matrix_norm: matrix_norm,
    F.normalize: normalize,
}
