"""Means, sums, extremes and norms over rows of all ranks, each equal to torch's over all rows in one process.

Every function takes what torch's takes. It returns NotImplemented where no dimension of rows is reduced: torch's own
function is then right.

Legend: x rows, d the dimension of the rows, N rows of all ranks.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import Rows, rows_of

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

Dims = int | tuple[int, ...] | list[int] | None


def _over(x: Any, dim: Dims) -> tuple[Rows, list[int]] | None:
    """The rows of x and the dimensions to reduce, where rows are among them."""
    rows = rows_of(x)
    if rows is None or rows.points is not None:
        return None
    dims = (
        list(range(x.dim())) if dim is None or dim == () or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    )
    if not all(isinstance(d, int) for d in dims):
        return None  # names of dimensions, or another tensor as in torch.max(x, y)
    dims = [d % x.dim() for d in dims]
    return (rows, dims) if rows.dim in dims else None


def _entries(forward: "Forward", x: Tensor, rows: Rows, dims: list[int]) -> int:
    """How many entries of all ranks one result is made of."""
    count = forward.total(rows.space) * rows.each * rows.blocks
    for d in dims:
        count *= 1 if d == rows.dim else x.shape[d]
    return count


def _total(forward: "Forward", x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return forward.reduce(x.sum(dims, keepdim=keepdim))


def mean(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    over = _over(x, dim)
    if over is None:
        return NotImplemented
    rows, dims = over
    x = x if dtype is None else x.to(dtype)
    return _total(forward, x, dims, keepdim) / _entries(forward, x, rows, dims)


def variance(
    forward: "Forward", x: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Any:  # fmt: skip
    """sum (x - mean)^2 / (N - correction)"""
    if isinstance(dim, bool):  # torch.var(x, unbiased)
        dim, unbiased = None, dim
    over = _over(x, dim)
    if over is None:
        return NotImplemented
    rows, dims = over
    less = correction if correction is not None else float(unbiased is None or unbiased)
    entries = _entries(forward, x, rows, dims)
    centred = x - _total(forward, x, dims, True) / entries
    return _total(forward, centred.square(), dims, keepdim) / max(0.0, entries - less)


def deviation(forward: "Forward", *args: Any, **kwargs: Any) -> Any:
    var = variance(forward, *args, **kwargs)
    return var if var is NotImplemented else var.sqrt()


def _with_mean(spread: Callable[..., Any]) -> Callable[..., Any]:
    def both(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = spread(forward, x, dim, *args, **kwargs)
        dims = None if isinstance(dim, bool) else dim
        keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
        return found if found is NotImplemented else (found, mean(forward, x, dims, keepdim))

    return both


def norm(forward: "Forward", x: Tensor, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """(sum |x|^p)^(1/p)"""
    over = _over(x, dim)
    if over is None:
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    power = 2.0 if p in ("fro", None) else p
    if power == float("inf"):
        return extreme(forward, x.abs(), over[1], keepdim, largest=True)
    if isinstance(power, str) or power <= 0:
        refuse(f"a norm of order {p} over rows of all ranks is not known; use order 2")
    total = _total(forward, x.abs() ** power if power % 2 else x**power, over[1], keepdim)
    return total.sqrt() if power == 2 else total ** (1 / power)


def vector_norm(
    forward: "Forward", x: Tensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return norm(forward, x, ord, dim, keepdim, dtype)


def normalize(
    forward: "Forward", input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Any:
    length = norm(forward, input, p, dim, True)
    if length is NotImplemented:
        return length
    return forward.as_rows(input / length.clamp_min(eps), rows_of(input))


def softmax(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """exp(x - max) / sum exp(x - max)"""
    dtype = kwargs.get("dtype", next((a for a in args if isinstance(a, torch.dtype)), None))
    over = _over(x, dim) if isinstance(dim, int) else None
    if over is None:
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    high = extreme(forward, x.detach(), over[1], True, largest=True)
    powers = (x - high).exp()
    return forward.as_rows(powers / _total(forward, powers, over[1], True), over[0])


def log_softmax(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    found = softmax(forward, x, dim, *args, **kwargs)
    return found if found is NotImplemented else forward.as_rows(x - logsumexp(forward, x, dim, True), rows_of(x))


def logsumexp(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    over = _over(x, dim)
    if over is None:
        return NotImplemented
    high = extreme(forward, x.detach(), over[1], True, largest=True)
    out = high + _total(forward, (x - high).exp(), over[1], True).log()
    return out if keepdim else out.squeeze(over[1])


def extreme(forward: "Forward", x: Tensor, dims: list[int], keepdim: bool, *, largest: bool) -> Tensor:
    """The largest or smallest value over rows of all ranks; equal values share the gradient evenly."""
    best = _best(forward, x, dims, largest)
    if not x.requires_grad:
        return best if keepdim else best.squeeze(dims)
    chosen = (x == best).to(x.dtype)
    ties = forward.reduce(chosen.sum(dims, keepdim=True))
    shared = _total(forward, x * chosen / ties, dims, True)
    out = best + (shared - shared.detach())
    return out if keepdim else out.squeeze(dims)


def _best(forward: "Forward", x: Tensor, dims: list[int], largest: bool) -> Tensor:
    x = x.detach()
    if x.numel():
        mine = x.amax(dims, keepdim=True) if largest else x.amin(dims, keepdim=True)
    else:
        info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        worst = (
            (-float("inf") if largest else float("inf")) if x.is_floating_point() else info.min if largest else info.max
        )
        shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
        mine = x.new_full(shape, worst)
    each = forward.gather(mine)
    return each.amax(0) if largest else each.amin(0)


def _extremes(largest: bool) -> Callable[..., Any]:
    def amax(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
        over = _over(x, dim)
        return NotImplemented if over is None else extreme(forward, x, over[1], keepdim, largest=largest)

    return amax


def _first_extreme(largest: bool) -> Callable[..., Any]:
    """torch.max and torch.min: of all numbers, or along a dimension with the row that has it."""

    def function(forward: "Forward", x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        rows = rows_of(x)
        if rows is not None and rows.points is not None and dim is None:
            return forward.last_position(rows, largest)
        over = _over(x, dim)
        if over is None or isinstance(dim, Tensor):
            return NotImplemented
        if dim is None:
            return extreme(forward, x, over[1], False, largest=largest)
        return _with_row(forward, x, over[0], keepdim, largest)

    return function


def _with_row(forward: "Forward", x: Tensor, rows: Rows, keepdim: bool, largest: bool) -> Any:
    """The value, and the id of the row that has it; of equal ones the row of the lowest id, which has the gradient."""
    if not rows.is_single:
        refuse("max or min along rows that are split into several entries each")
    best = _best(forward, x, [rows.dim], largest)
    ids = rows.space.ids.view([-1 if d == rows.dim else 1 for d in range(x.dim())])
    found = torch.where(x.detach() == best, ids, torch.iinfo(torch.int64).max)
    row = _best(forward, found, [rows.dim], False)
    out = forward.reduce(torch.where((ids == row) & (x.detach() == best), x, 0).sum(rows.dim, keepdim=True))
    kind = torch.return_types.max if largest else torch.return_types.min
    return kind((out, row) if keepdim else (out.squeeze(rows.dim), row.squeeze(rows.dim)))


def _count(forward: "Forward", x: Tensor, dim: Any, keepdim: bool) -> Any:
    over = _over(x, dim)
    return None if over is None else _total(forward, x.bool().long(), over[1], keepdim)


def any_of(forward: "Forward", x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    count = _count(forward, x, dim, keepdim)
    return NotImplemented if count is None else count > 0


def all_of(forward: "Forward", x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    missing = _count(forward, forward.as_rows(~x.bool(), rows_of(x)), dim, keepdim)
    return NotImplemented if missing is None else missing == 0


_T = Tensor
SUMS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.mean, _T.mean), mean),
    **dict.fromkeys((torch.var, _T.var), variance),
    **dict.fromkeys((torch.std, _T.std), deviation),
    torch.var_mean: _with_mean(variance),
    torch.std_mean: _with_mean(deviation),
    **dict.fromkeys((torch.norm, _T.norm), norm),
    **dict.fromkeys((torch.linalg.vector_norm, torch.linalg.norm), vector_norm),
    F.normalize: normalize,
    **dict.fromkeys((torch.softmax, _T.softmax, F.softmax), softmax),
    **dict.fromkeys((torch.log_softmax, _T.log_softmax, F.log_softmax), log_softmax),
    **dict.fromkeys((torch.logsumexp, _T.logsumexp), logsumexp),
    **dict.fromkeys((torch.amax, _T.amax), _extremes(True)),
    **dict.fromkeys((torch.amin, _T.amin), _extremes(False)),
    **dict.fromkeys((torch.max, _T.max), _first_extreme(True)),
    **dict.fromkeys((torch.min, _T.min), _first_extreme(False)),
    **dict.fromkeys((torch.any, _T.any), any_of),
    **dict.fromkeys((torch.all, _T.all), all_of),
}
