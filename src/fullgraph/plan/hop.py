"""The stage hop: a chunk's rows go from one pipeline stage to the next, and their gradients back."""

from dataclasses import dataclass

from torch import Tensor

from fullgraph.plan.base import Shape


@dataclass(frozen=True)
class HopRoute:
    """The identity between two ranks: all rows of `sender`'s x become `receiver`'s y."""

    rank: int
    rows: int
    sender: int = 0
    receiver: int = 1

    def pack(self, x: Tensor) -> dict[int, Tensor]:
        return {self.receiver: x} if self.rank == self.sender and self.rows else {}

    def shapes(self, width: Shape) -> dict[int, Shape]:
        return {self.sender: (self.rows, *width)} if self.rank == self.receiver and self.rows else {}

    def out_shape(self, width: Shape) -> Shape:
        return self.rows if self.rank == self.receiver else 0, *width

    def unpack(self, parts: dict[int, Tensor], out: Tensor) -> Tensor:
        """Add the received rows, if there are any."""
        for rows in parts.values():
            out.add_(rows)
        return out

    @property
    def T(self) -> "HopRoute":
        return HopRoute(self.rank, self.rows, self.receiver, self.sender)
