"""The halo route: each rank's boundary rows go to the ranks whose edges read them.

Legend: n owned rows, h halo rows, s sent rows, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.ops import add_rows
from fullgraph.plan.base import Shape


@dataclass(frozen=True, eq=False)
class HaloRoute:
    """Copies owned rows to the peers that hold them as halo:  halo = R x."""

    send_rows: Tensor  # [s] owned rows, grouped by peer
    send_counts: tuple[int, ...]  # per rank
    recv_counts: tuple[int, ...]  # per rank; halo rows are grouped by owner in the same order
    num_owned: int

    def pack(self, x_nD: Tensor) -> dict[int, Tensor]:
        """Return each peer's rows on the route's device; x may be in host memory."""
        rows_sD = x_nD.index_select(0, self.send_rows.to(x_nD.device)).to(self.send_rows.device)
        return split(rows_sD, self.send_counts)

    def send_slices(self) -> dict[int, Tensor]:
        """Return the owned rows that each peer reads."""
        return split(self.send_rows, self.send_counts)

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return {peer: (count, *width) for peer, count in enumerate(self.recv_counts) if count}

    def out_shape(self, width: Shape) -> Shape:
        return sum(self.recv_counts), *width

    def unpack(self, parts: dict[int, Tensor], out_hD: Tensor) -> Tensor:
        """Write each peer's rows into its slice of `out`."""
        for peer, rows in split(out_hD, self.recv_counts).items():
            rows.copy_(parts[peer])
        return out_hD

    def to(self, device: torch.device) -> "HaloRoute":
        return HaloRoute(self.send_rows.to(device), self.send_counts, self.recv_counts, self.num_owned)

    @cached_property
    def T(self) -> "HaloGradientRoute":
        return HaloGradientRoute(self)


@dataclass(frozen=True, eq=False)
class HaloGradientRoute:
    """Returns gradients of halo rows to their owners, which add them:  g += R^T g_halo."""

    T: HaloRoute

    def pack(self, grad_hD: Tensor) -> dict[int, Tensor]:
        return split(grad_hD, self.T.recv_counts)

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return {peer: (count, *width) for peer, count in enumerate(self.T.send_counts) if count}

    def out_shape(self, width: Shape) -> Shape:
        return self.T.num_owned, *width

    def unpack(self, parts: dict[int, Tensor], out_nD: Tensor) -> Tensor:
        """Add each peer's gradients to the rows that were sent to it, in peer order so that sums are reproducible."""
        for peer, rows in self.T.send_slices().items():
            add_rows(out_nD, rows, parts[peer])
        return out_nD


def split(x: Tensor, counts: tuple[int, ...]) -> dict[int, Tensor]:
    """Split `x` by rank, without ranks that have no rows."""
    return {peer: rows for peer, rows in enumerate(torch.split(x, list(counts))) if len(rows)}
