"""Means, sums, extremes and norms over rows of all ranks, each equal to torch's over all rows in one process.

Every function takes torch's arguments. It returns NotImplemented if no dimension of rows is reduced, because torch's
own function is then correct.

Legend: x rows, d the dimension of the rows, N rows of all ranks.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import Rows, rows_of

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward

Dims = int | tuple[int, ...] | list[int] | None


def over(x: Any, dim: Dims) -> tuple[Rows, list[int]] | None:
    """The mark of x and the dimensions to reduce, if rows are among them."""
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


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Sum 16-bit numbers in float32, as torch does: float16 ends at 65,504."""

    @wraps(function)
    def fine(forward: "Forward", x: Tensor, *args: Any, **kwargs: Any) -> Any:
        rows = rows_of(x)
        if rows is None or x.dtype not in (torch.float16, torch.bfloat16):
            return function(forward, x, *args, **kwargs)
        found = function(forward, forward.as_rows(x.float(), rows), *args, **kwargs)
        if found is NotImplemented or any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
            return found
        if isinstance(found, tuple):
            return tuple(one.to(x.dtype) for one in found)
        return forward.as_rows(found.to(x.dtype), rows_of(found))

    return fine


def _entries(forward: "Forward", x: Tensor, rows: Rows, dims: list[int]) -> int:
    """The number of entries of all ranks in one result."""
    count = forward.total(rows.space) * rows.each * rows.blocks
    for d in dims:
        count *= 1 if d == rows.dim else x.shape[d]
    return count


def total(forward: "Forward", x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return forward.reduce(x.sum(dims, keepdim=keepdim))


@in_float32
def mean(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    found = over(x, dim)
    if found is None:
        return NotImplemented
    rows, dims = found
    x = x if dtype is None else x.to(dtype)
    return total(forward, x, dims, keepdim) / _entries(forward, x, rows, dims)


@in_float32
def nanmean(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    found = over(x, dim)
    if found is None:
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    given = total(forward, (~x.isnan()).to(x.dtype), found[1], keepdim)
    return total(forward, x.nan_to_num(0.0, float("inf"), -float("inf")), found[1], keepdim) / given


@in_float32
def covariance(
    forward: "Forward", x: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Any:
    """(x - mean) (x - mean)^T / (N - correction) of variables [D, N]."""
    rows = rows_of(x)
    if rows is None or rows.dim != x.dim() - 1 or fweights is not None or aweights is not None:
        return NotImplemented
    entries = _entries(forward, x, rows, [rows.dim])
    centred = (x - total(forward, x, [rows.dim], True) / entries).view(-1, x.shape[-1])
    products = forward.reduce(centred @ centred.mH) / max(0, entries - correction)
    return products if x.dim() == 2 else products.view(())


def correlation(forward: "Forward", x: Tensor) -> Any:
    found = covariance(forward, x)
    if found is NotImplemented or not found.dim():
        return found if found is NotImplemented else found / found
    deviations = found.diag().sqrt()
    return (found / deviations[:, None] / deviations).clip(-1, 1)


@in_float32
def variance(
    forward: "Forward", x: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> Any:  # fmt: skip
    """sum (x - mean)^2 / (N - correction)"""
    if isinstance(dim, bool):  # torch.var(x, unbiased)
        dim, unbiased = None, dim
    found = over(x, dim)
    if found is None:
        return NotImplemented
    rows, dims = found
    less = correction if correction is not None else float(unbiased is None or unbiased)
    entries = _entries(forward, x, rows, dims)
    centred = x - total(forward, x, dims, True) / entries
    return total(forward, _squared(centred), dims, keepdim) / max(0.0, entries - less)


def deviation(forward: "Forward", *args: Any, **kwargs: Any) -> Any:
    var = variance(forward, *args, **kwargs)
    return var if var is NotImplemented else root(var, 2)


def _squared(x: Tensor) -> Tensor:
    return (x * x.conj()).real if x.is_complex() else x.square()


def root(x: Tensor, power: float) -> Tensor:
    """x^(1/p), without a gradient where x is 0, like torch's norms and deviations."""
    some = x != 0
    safe = torch.where(some, x, 1)
    return torch.where(some, safe.sqrt() if power == 2 else safe ** (1 / power), x if power > 0 else 0 * x)


def _with_mean(spread: Callable[..., Any]) -> Callable[..., Any]:
    def both(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = spread(forward, x, dim, *args, **kwargs)
        dims = None if isinstance(dim, bool) else dim
        keepdim = kwargs.get("keepdim", args[1] if len(args) > 1 else False)
        return found if found is NotImplemented else (found, mean(forward, x, dims, keepdim))

    return both


@in_float32
def softmax(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    """exp(x - max) / sum exp(x - max)"""
    dtype = kwargs.get("dtype", next((a for a in args if isinstance(a, torch.dtype)), None))
    found = over(x, dim) if isinstance(dim, int) else None
    if found is None:
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    high = extreme(forward, x.detach(), found[1], True, largest=True)
    powers = (x - high).exp()
    return forward.as_rows(powers / total(forward, powers, found[1], True), found[0])


def softmin(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    return softmax(forward, forward.as_rows(-x, rows_of(x)), dim, *args, **kwargs)


def log_softmax(forward: "Forward", x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    found = softmax(forward, x, dim, *args, **kwargs)
    return found if found is NotImplemented else forward.as_rows(x - logsumexp(forward, x, dim, True), rows_of(x))


@in_float32
def logsumexp(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    found = over(x, dim)
    if found is None:
        return NotImplemented
    high = extreme(forward, x.detach(), found[1], True, largest=True)
    out = high + total(forward, (x - high).exp(), found[1], True).log()
    return out if keepdim else out.squeeze(found[1])


def extreme(forward: "Forward", x: Tensor, dims: list[int], keepdim: bool, *, largest: bool) -> Tensor:
    """The largest or smallest value over rows of all ranks; equal values share the gradient evenly."""
    best = _best(forward, x, dims, largest)
    if not x.requires_grad:
        return best if keepdim else best.squeeze(dims)
    chosen = (x == best).to(x.dtype)
    ties = forward.reduce(chosen.sum(dims, keepdim=True))
    shared = total(forward, x * chosen / ties, dims, True)
    out = best + (shared - shared.detach())
    return out if keepdim else out.squeeze(dims)


def _best(forward: "Forward", x: Tensor, dims: list[int], largest: bool) -> Tensor:
    x = x.detach()
    if x.numel():
        mine = x.amax(dims, keepdim=True) if largest else x.amin(dims, keepdim=True)
    else:
        shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
        mine = x.new_full(shape, worst_of(x, largest))
    each = forward.gather(mine)
    return each.amax(0) if largest else each.amin(0)


def worst_of(x: Tensor, largest: bool) -> float | int:
    """The number that never is the largest, or the smallest."""
    if x.is_floating_point():
        return -float("inf") if largest else float("inf")
    info = torch.iinfo(x.dtype)
    return info.min if largest else info.max


def _extremes(largest: bool) -> Callable[..., Any]:
    def amax(forward: "Forward", x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
        found = over(x, dim)
        return NotImplemented if found is None else extreme(forward, x, found[1], keepdim, largest=largest)

    return amax


def both_extremes(forward: "Forward", x: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    found = over(x, dim)
    if found is None:
        return NotImplemented
    least, most = (extreme(forward, x, found[1], keepdim, largest=largest) for largest in (False, True))
    return torch.return_types.aminmax((least, most))


def _first_extreme(largest: bool) -> Callable[..., Any]:
    """torch.max and torch.min: of all numbers, or along a dimension, with the row that has the value."""

    def function(forward: "Forward", x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        rows = rows_of(x)
        if rows is not None and rows.points is not None and dim is None:
            return forward.last_position(rows, largest)
        found = over(x, dim)
        if found is None or isinstance(dim, Tensor):
            return NotImplemented
        if dim is None:
            return extreme(forward, x, found[1], False, largest=largest)
        return _with_row(forward, x, found[0], keepdim, largest)

    return function


def _with_row(forward: "Forward", x: Tensor, rows: Rows, keepdim: bool, largest: bool) -> Any:
    """The value, and the id of its row; of equal rows the one with the lowest id, which gets the gradient."""
    if not rows.is_single:
        refuse("max or min along rows that are split into several entries each")
    best = _best(forward, x, [rows.dim], largest)
    ids = rows.space.ids.view([-1 if d == rows.dim else 1 for d in range(x.dim())])
    found = torch.where(x.detach() == best, ids, torch.iinfo(torch.int64).max)
    row = _best(forward, found, [rows.dim], False)
    out = forward.reduce(torch.where((ids == row) & (x.detach() == best), x, 0).sum(rows.dim, keepdim=True))
    kind = torch.return_types.max if largest else torch.return_types.min
    return kind((out, row) if keepdim else (out.squeeze(rows.dim), row.squeeze(rows.dim)))


def bincount(forward: "Forward", input: Tensor, weights: Any = None, minlength: int = 0) -> Any:
    """How many rows of all ranks hold each number, or the sums of their weights."""
    rows = rows_of(input)
    if rows is None or rows.points is not None or (weights is not None and rows_of(weights) is None):
        return NotImplemented
    most = int(_best(forward, input, [0], True)) + 1
    return forward.reduce(torch.bincount(input, weights, max(int(minlength), most)))


def _count(forward: "Forward", x: Tensor, dim: Any, keepdim: bool) -> Any:
    found = over(x, dim)
    return None if found is None else total(forward, x.bool().long(), found[1], keepdim)


def any_of(forward: "Forward", x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    count = _count(forward, x, dim, keepdim)
    return NotImplemented if count is None else count > 0


def all_of(forward: "Forward", x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    missing = _count(forward, forward.as_rows(~x.bool(), rows_of(x)), dim, keepdim)
    return NotImplemented if missing is None else missing == 0


_T = Tensor
SUMS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.mean, _T.mean), mean),
    **dict.fromkeys((torch.nanmean, _T.nanmean), nanmean),
    **dict.fromkeys((torch.cov, _T.cov), covariance),
    **dict.fromkeys((torch.corrcoef, _T.corrcoef), correlation),
    **dict.fromkeys((torch.aminmax, _T.aminmax), both_extremes),
    F.softmin: softmin,
    **dict.fromkeys((torch.var, _T.var), variance),
    **dict.fromkeys((torch.std, _T.std), deviation),
    torch.var_mean: _with_mean(variance),
    torch.std_mean: _with_mean(deviation),
    **dict.fromkeys((torch.softmax, _T.softmax, F.softmax, torch.special.softmax), softmax),
    **dict.fromkeys((torch.log_softmax, _T.log_softmax, F.log_softmax, torch.special.log_softmax), log_softmax),
    **dict.fromkeys((torch.logsumexp, _T.logsumexp, torch.special.logsumexp), logsumexp),
    **dict.fromkeys((torch.bincount, _T.bincount), bincount),
    **dict.fromkeys((torch.amax, _T.amax), _extremes(True)),
    **dict.fromkeys((torch.amin, _T.amin), _extremes(False)),
    **dict.fromkeys((torch.max, _T.max), _first_extreme(True)),
    **dict.fromkeys((torch.min, _T.min), _first_extreme(False)),
    **dict.fromkeys((torch.any, _T.any), any_of),
    **dict.fromkeys((torch.all, _T.all, torch._is_all_true), all_of),
}
