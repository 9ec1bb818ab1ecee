"""The protocol of a route."""

from typing import Protocol

from torch import Tensor

Shape = tuple[int, ...]


class Route(Protocol):
    """A sparse 0/1 matrix R spread over ranks:  y = R x.  Stateless; `T` is the transpose, and so the backward pass."""

    @property
    def T(self) -> "Route": ...
    def pack(self, x: Tensor) -> dict[int, Tensor]:
        """Return the rows for each peer. They may share x's memory, except if a channel begins with relu=True."""
        ...

    def shapes(self, width: Shape) -> dict[int, Shape]:
        """Return the shape of each peer's message, if this rank's x has rows of `width`."""
        ...

    def out_shape(self, width: Shape) -> Shape:
        """Return the shape of R x on this rank, if its x has rows of `width`."""
        ...

    def unpack(self, parts: dict[int, Tensor], out: Tensor) -> Tensor:
        """Put each peer's part in its place of `out`, in peer order; the transpose of copies adds them there.

        `out` holds zeros, or this rank's own values.
        """
        ...
