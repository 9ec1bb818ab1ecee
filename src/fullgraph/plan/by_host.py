"""Routes by host: between two hosts a row crosses once for all ranks of its readers' host, and the terms of a sum are
added before they cross.

    halo = [1; H] X (1 + A) M x

M makes rows and sums of this rank's rows, A adds those of other ranks of its host, X crosses, and H hands rows on
inside the readers' host. Only X sends from host to host.

Legend: n owned rows, p sums that another rank of the host adds to its own, s rows and sums that cross, k of them with
terms of other ranks, h halo rows, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullgraph.plan.base import Route, Shape
from fullgraph.plan.cover import CoverRoute
from fullgraph.plan.halo import HaloGradientRoute, HaloRoute, split


@dataclass(frozen=True, eq=False, kw_only=True)
class HostRoutes:
    """A layer's routes, in the order in which rows take them; each has a transpose, and so has their product."""

    own: CoverRoute  # M, from this rank to itself: [p] and then [s]
    added: HaloRoute | None  # its transpose brings rows [p] to the ranks that add them, [k]; None: no rank adds
    places: Tensor  # [k] of [s], the sums with terms of other ranks
    across: HaloRoute  # X, of all rows [s]
    handed: HaloRoute | None  # H: rows that came across, to other readers; None: no rank hands rows on
    ids: Tensor  # [s], global ids of the rows that cross; for a sum, the largest id of its rows

    @property
    def counts(self) -> tuple[int, int]:
        """(p, s)."""
        s = self.across.num_owned
        return self.own.matrix.shape[0] - s, s

    @property
    def adds(self) -> Route | None:
        return None if self.added is None else self.added.T


@dataclass(frozen=True, eq=False)
class WholeRoute:
    """Sends all rows, which are in the order of peers, without a copy of them."""

    rows: HaloRoute

    def pack(self, x_sD: Tensor) -> dict[int, Tensor]:
        return split(x_sD, self.rows.send_counts)

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return self.rows.shapes(width)

    def out_shape(self, width: Shape) -> Shape:
        return self.rows.out_shape(width)

    def unpack(self, parts: dict[int, Tensor], out_hD: Tensor) -> Tensor:
        return self.rows.unpack(parts, out_hD)

    @property
    def T(self) -> HaloGradientRoute:
        return self.rows.T


class Taken(torch.autograd.Function):
    """forward: (x, M x).  backward: dx + M^T d(M x). mapped: dx may be changed in place, see `Channel.begin`."""

    @staticmethod
    def forward(ctx, x_nD: Tensor, own: CoverRoute, mapped: bool):  # type: ignore[no-untyped-def]
        ctx.own, ctx.mapped = own, mapped
        rows = own.pack(x_nD)
        return x_nD.view_as(x_nD), next(iter(rows.values()), x_nD.new_empty(0, *x_nD.shape[1:]))

    @staticmethod
    def backward(ctx, grad_nD: Tensor, grad_sD: Tensor):  # type: ignore[no-untyped-def]
        if not len(grad_sD):
            return grad_nD, None, None
        out_nD = grad_nD if ctx.mapped else grad_nD.clone()
        return ctx.own.T.unpack({0: grad_sD.contiguous()}, out_nD), None, None
