"""The spread route: small tensors go to all ranks that read them.

Legend: N rows on all ranks, n of them on this one; D columns.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.plan.base import Shape


@dataclass(frozen=True)
class SpreadRoute:
    """Sends all rows to the ranks that read them:  x [n, D]  becomes  y [N, D].  `own`: see the tile routes.

    Ranks that do not read some rows have zeros for them.
    """

    rank: int
    rows: tuple[int, ...]  # per rank; y has the ranks' rows one after another
    readers: tuple[int, ...]

    def pack(self, x_nD: Tensor) -> dict[int, Tensor]:
        return {peer: x_nD.contiguous() for peer in self._others(self.readers) if self.rows[self.rank]}

    def shapes(self, width: Shape) -> dict[int, Shape]:
        owners = self._others(range(len(self.rows))) if self.rank in self.readers else ()
        return {peer: (self.rows[peer], *width) for peer in owners if self.rows[peer]}

    def _others(self, ranks: Iterable[int]) -> list[int]:
        return [peer for peer in ranks if peer != self.rank]

    def out_shape(self, width: Shape) -> Shape:
        return sum(self.rows), *width

    def unpack(self, parts: dict[int, Tensor], out_ND: Tensor) -> Tensor:
        for peer, rows in enumerate(out_ND.split(self.rows)):
            if peer in parts:
                rows.add_(parts[peer])
        return out_ND

    def own(self, x_nD: Tensor) -> Tensor:
        return x_nD

    @cached_property
    def T(self) -> "SpreadSumRoute":
        return SpreadSumRoute(self)


@dataclass(frozen=True)
class SpreadSumRoute:
    """Returns gradients to their owners, which add them in peer order so that sums are reproducible."""

    T: SpreadRoute

    def pack(self, y_ND: Tensor) -> dict[int, Tensor]:
        parts, peers = y_ND.split(self.T.rows), self.T.shapes(())
        return {peer: parts[peer].contiguous() for peer in peers}

    def shapes(self, width: Shape) -> dict[int, Shape]:
        n = self.T.rows[self.T.rank]
        return {peer: (n, *width) for peer in self.T._others(self.T.readers) if n}

    def out_shape(self, width: Shape) -> Shape:
        return self.T.rows[self.T.rank], *width

    def unpack(self, parts: dict[int, Tensor], out_nD: Tensor) -> Tensor:
        for _, part in sorted(parts.items()):
            out_nD.add_(part)
        return out_nD

    def own(self, y_ND: Tensor) -> Tensor:
        return y_ND.narrow(0, sum(self.T.rows[: self.T.rank]), self.T.rows[self.T.rank])
