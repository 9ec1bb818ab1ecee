"""Extremes of rows by groups that are equal on every rank, such as classes, or all nodes as one group."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullgraph.own_model.rows.spaces import rows_of
from fullgraph.own_model.rows.sums import worst_of

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward


def grouped(
    forward: "Forward", x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Any:
    """x.scatter_reduce(dim, index, source, "amax" or "amin") over rows of all ranks; equal values share the gradient.

    NotImplemented for other reductions, and where x has rows itself.
    """
    by, rows, dim = rows_of(index), rows_of(source), dim % max(1, x.dim())
    fits = by is not None and rows is not None and by.points is None and by.dim == rows.dim == dim and by.fits(rows)
    if reduce not in ("amax", "amin") or not fits or rows_of(x) is not None or (include_self and x.requires_grad):
        return NotImplemented
    largest = reduce == "amax"

    def summed(values: Tensor) -> Tensor:
        zeros = torch.zeros(x.shape, dtype=values.dtype, device=x.device)
        return forward.reduce(zeros.scatter_add(dim, index, values))

    with torch.no_grad():
        mine = torch.full_like(x, worst_of(x, largest)).scatter_reduce(dim, index, source.detach(), reduce)
        each = forward.gather(mine)
        best = each.amax(0) if largest else each.amin(0)
        if include_self:
            best = torch.maximum(x, best) if largest else torch.minimum(x, best)
        out = torch.where(summed(torch.ones_like(source)) > 0, best, x)
        chosen = source == out.gather(dim, index)
    if not source.requires_grad:
        return out
    ties = summed(chosen.to(x.dtype)) + (include_self & (x == out))
    share = torch.where(chosen, source / ties.gather(dim, index), 0)
    shared = summed(share)
    return out + (shared - shared.detach())
