"""The tile routes of a mixture: from all columns of some rows to some columns of all rows, and back.

Legend: N rows on all ranks, n of them on this one; D columns, k of them on this rank.
"""

from dataclasses import dataclass

from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.plan.base import Shape


@dataclass(frozen=True)
class TileRoute:
    """Rows to columns:  x [n, D]  becomes  y [N, k],  with one tile from every rank to every other rank.

    The tile that stays on a rank is not sent: it is `own(x)`, and its place in y is `T.own(y)`. All messages together
    carry  N D - sum_r n_r k_r  numbers, which is  N D (P - 1) / P  if P ranks have equal shares of rows and columns.
    """

    rank: int
    rows: tuple[int, ...]  # per rank; y has the ranks' rows one after another
    columns: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, rows: tuple[int, ...], width: int, among: tuple[int, ...] | None = None) -> "TileRoute":
        """Divide `width` columns as evenly as possible between the ranks in `among` (None: all)."""
        chosen = range(len(rows)) if among is None else among
        share, rest = divmod(width, len(chosen))
        columns = {peer: share + (place < rest) for place, peer in enumerate(chosen)}
        return cls(rank, rows, tuple(columns.get(peer, 0) for peer in range(len(rows))))

    def pack(self, x_nD: Tensor) -> dict[int, Tensor]:
        """Return a tile for each peer; if x has one number per row ([n]), every tile is x."""
        tiles = x_nD.split(self.columns, 1) if x_nD.dim() > 1 else [x_nD] * len(self.columns)
        n = self.rows[self.rank]
        return {
            peer: tile.contiguous() for peer, tile in enumerate(tiles) if self._crosses(peer, n, self.columns[peer])
        }

    def shapes(self, width: Shape) -> dict[int, Shape]:
        assert width == (sum(self.columns),), f"a route of {sum(self.columns)} columns was given {width}"
        k = self.columns[self.rank]
        return {peer: (n, k) for peer, n in enumerate(self.rows) if self._crosses(peer, n, k)}

    def out_shape(self, width: Shape) -> Shape:
        return sum(self.rows), self.columns[self.rank]

    def unpack(self, parts: dict[int, Tensor], out_Nk: Tensor) -> Tensor:
        """Add each peer's tile in its place: to zeros, or to the gradient of the tile that stayed."""
        for peer, rows in enumerate(out_Nk.split(self.rows)):
            if peer in parts:
                rows.add_(parts[peer])
        return out_Nk

    def own(self, x_nD: Tensor) -> Tensor:
        """Return the tile that stays on this rank, as a view of x."""
        return x_nD.narrow(1, sum(self.columns[: self.rank]), self.columns[self.rank])

    @cached_property
    def T(self) -> "TileBackRoute":
        return TileBackRoute(self)

    def _crosses(self, peer: int, rows: int, columns: int) -> bool:
        return peer != self.rank and rows * columns > 0


@dataclass(frozen=True)
class TileBackRoute:
    """Columns to rows:  y [N, k]  becomes  x [n, D];  the transpose, and the inverse, of `TileRoute`."""

    T: TileRoute

    def pack(self, y_Nk: Tensor) -> dict[int, Tensor]:
        peers = self.T.shapes((sum(self.T.columns),))
        return {peer: tile.contiguous() for peer, tile in enumerate(y_Nk.split(self.T.rows)) if peer in peers}

    def shapes(self, width: Shape) -> dict[int, Shape]:
        route = self.T
        assert width == (route.columns[route.rank],), f"rank {route.rank} has other columns than {width}"
        n = route.rows[route.rank]
        return {peer: (n, k) for peer, k in enumerate(route.columns) if route._crosses(peer, n, k)}

    def out_shape(self, width: Shape) -> Shape:
        return self.T.rows[self.T.rank], sum(self.T.columns)

    def unpack(self, parts: dict[int, Tensor], out_nD: Tensor) -> Tensor:
        for peer, columns in enumerate(out_nD.split(self.T.columns, 1)):
            if peer in parts:
                columns.add_(parts[peer])
        return out_nD

    def own(self, y_Nk: Tensor) -> Tensor:
        return y_Nk.narrow(0, sum(self.T.rows[: self.T.rank]), self.T.rows[self.T.rank])
