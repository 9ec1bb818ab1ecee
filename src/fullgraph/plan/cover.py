"""The cover route: some rows cross as they are, and sums of rows cross where that takes fewer messages.

Legend: n owned rows, s sent rows and sums, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.plan.base import Shape
from fullgraph.plan.halo import HaloGradientRoute, HaloRoute, split


@dataclass(frozen=True, eq=False)
class CoverRoute:
    """Sends M x, rows and weighted sums of owned rows:  halo = R x,  where R has the rows of every rank's M.

    numbers: moves one value per row of M, such as an id. With the values of owned rows, `numbers_of` makes them.
    """

    numbers: HaloRoute
    matrix: Adjacency  # M [s, n], by peer; a row that crosses as it is has a single one

    def pack(self, x_nD: Tensor) -> dict[int, Tensor]:
        with torch.no_grad():
            return split(spmm(self.matrix, x_nD), self.numbers.send_counts)

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return self.numbers.shapes(width)

    def out_shape(self, width: Shape) -> Shape:
        return self.numbers.out_shape(width)

    def unpack(self, parts: dict[int, Tensor], out_hD: Tensor) -> Tensor:
        return self.numbers.unpack(parts, out_hD)

    def numbers_of(self, values_n: Tensor) -> Tensor:
        """One value [s] per row of M: the largest of its rows."""
        return largest(self.matrix.structure, values_n)

    @cached_property
    def T(self) -> "CoverGradientRoute":
        return CoverGradientRoute(self)


def largest(pattern: Structure, values_C: Tensor) -> Tensor:
    """The largest value [R] among the columns of each row; no row is empty."""
    out_R = values_C.new_zeros(pattern.num_rows)
    return out_R.scatter_reduce_(0, pattern.rows, values_C[pattern.indices.long()], "amax", include_self=False)


@dataclass(frozen=True, eq=False)
class CoverGradientRoute:
    """Returns gradients to the rows that were sent or summed:  g += R^T g_halo."""

    T: CoverRoute

    @property
    def _numbers(self) -> HaloGradientRoute:
        return self.T.numbers.T

    def pack(self, grad_hD: Tensor) -> dict[int, Tensor]:
        return self._numbers.pack(grad_hD)

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return self._numbers.shapes(width)

    def out_shape(self, width: Shape) -> Shape:
        return self.T.matrix.shape[1], *width

    def unpack(self, parts: dict[int, Tensor], out_nD: Tensor) -> Tensor:
        """Add M^T g, in the same order every time."""
        if not parts:
            return out_nD
        with torch.no_grad():
            return spmm(self.T.matrix.T, torch.cat([parts[peer] for peer in sorted(parts)]).to(out_nD.dtype), out_nD)
