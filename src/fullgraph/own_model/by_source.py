"""Sums and extremes of rows of edges by the edges' sources: messages against the edges.

An edge lies on the rank of its target, and its source may be a halo row. So each rank reduces the rows of its own
edges, for owned and for halo rows, and sends the results of halo rows to their owners, along the transpose of the halo
route. They cross exactly, whatever the strategy.

Legend: n owned rows, h halo rows, m = n + h, e edges, D features.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import Rows, mark, rows_of
from fullgraph.own_model.rows.values import is_even
from fullgraph.plan import HaloRoute, Route
from fullgraph.plan.base import Shape

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Forward
    from fullgraph.own_model.pyg_view import PygView


def reduced(
    forward: "Forward", x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """x.scatter_reduce(dim, index, source, reduce, include_self=...), with sources of edges as the index."""
    dim %= x.dim()
    view = _check(forward, x, dim, index, source)
    with torch._C.DisableTorchFunction():
        if index.dim() < source.dim():
            index = index.view([-1 if d == dim else 1 for d in range(source.dim())])
        index = index.detach().expand_as(source)
        if reduce == "sum" and include_self:
            out = x + _sums(forward, view, dim, index, source)
        elif reduce in ("amax", "amin") and not include_self:
            sign = 1 if reduce == "amax" else -1
            found = _maxima(forward, view, dim, index, sign * source)
            out = torch.where(_sums(forward, view, dim, index, torch.ones_like(source)) > 0, sign * found, x)
        else:
            refuse(
                f"{reduce} over edges by their source; use the sum, or the largest or smallest with include_self=False"
            )
    return mark(out, Rows(view.nodes, dim))


def _check(forward: "Forward", x: Tensor, dim: int, index: Tensor, source: Tensor) -> "PygView":
    """Refuse other rows than those of the edges; return the view of their sources."""
    by, rows, target = rows_of(index), rows_of(source), rows_of(x)
    assert by is not None
    along = 0 if index.dim() == 1 else dim
    fits = is_even(source, dim) if rows is None else rows.dim == dim and rows.fits(by.values) and rows.points is None
    if by.dim != along or not by.is_single or not fits or (index.dim() > 1 and index.shape != source.shape):
        refuse("rows are reduced by the sources of edges, but they are not rows of these edges")
    view = forward.at(by.space)
    nodes = view.nodes
    owned = is_even(x, dim) if target is None else target.dim == dim and target.space.is_like(nodes)
    with torch._C.DisableTorchFunction():
        if not owned or x.shape[dim] != nodes.size:
            refuse("rows of edges are reduced by their source into a tensor without a row per node; use x.size(0)")
    return view


def _sums(forward: "Forward", view: "PygView", dim: int, index: Tensor, source: Tensor) -> Tensor:
    n, m = view.num_owned, len(view.all_ids)
    shape = [m if d == dim else size for d, size in enumerate(source.shape)]
    total = source.new_zeros(shape).scatter_add(dim, index, source)
    return total.narrow(dim, 0, n) + _crossed(forward, view, total.narrow(dim, n, m - n), dim, view.graph.rows.route.T)


def _maxima(forward: "Forward", view: "PygView", dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The largest row for each source; equal ones share the gradient evenly, as in torch."""
    n, m, route = view.num_owned, len(view.all_ids), view.graph.rows.route
    with torch.no_grad():
        shape = [m if d == dim else size for d, size in enumerate(source.shape)]
        best = source.new_full(shape, _least(source)).scatter_reduce(dim, index, source.detach(), "amax")
        others = _crossed(forward, view, best.narrow(dim, n, m - n), dim, LargestOfHalo(route))
        best = torch.maximum(best.narrow(dim, 0, n), others)
    if not source.requires_grad:
        return best
    with torch.no_grad():

        def at_edges(owned: Tensor) -> Tensor:
            return torch.cat([owned, _crossed(forward, view, owned, dim, route)], dim).gather(dim, index)

        chosen = (source == at_edges(best)).to(source.dtype)
        share = chosen / at_edges(_sums(forward, view, dim, index, chosen))
    shared = _sums(forward, view, dim, index, source * share)
    return best + (shared - shared.detach())


def _crossed(forward: "Forward", view: "PygView", x: Tensor, dim: int, route: Route) -> Tensor:
    """Send rows along `dim` over a route, exactly."""
    x = x.movedim(dim, 0)
    out = forward.cross_exactly(x.reshape(len(x), prod(x.shape[1:])), route, view)
    return out.view(-1, *x.shape[1:]).movedim(0, dim)


def _least(x: Tensor) -> float:
    return -float("inf") if x.is_floating_point() else torch.iinfo(x.dtype).min


@dataclass(frozen=True, eq=False)
class LargestOfHalo:
    """Returns rows of halo nodes to their owners, which keep the largest; it has no gradient."""

    T: HaloRoute

    def pack(self, x_hD: Tensor) -> dict[int, Tensor]:
        return self.T.T.pack(x_hD)

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return self.T.T.shapes(width)

    def out_shape(self, width: Shape) -> Shape:
        return self.T.T.out_shape(width)

    def unpack(self, parts: dict[int, Tensor], out_nD: Tensor) -> Tensor:
        out_nD.fill_(_least(out_nD))
        for peer, rows in self.T.send_slices().items():
            out_nD[rows] = torch.maximum(out_nD[rows], parts[peer])
        return out_nD
