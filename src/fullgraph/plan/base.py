"""What every route is."""

from typing import Protocol

from torch import Tensor

Shape = tuple[int, ...]


class Route(Protocol):
    """A sparse 0/1 matrix R spread over ranks:  y = R x.  Stateless; `T` is the transpose, and so the backward pass."""

    @property
    def T(self) -> "Route": ...
    def pack(self, x: Tensor) -> dict[int, Tensor]:
        """What each peer is sent. It may share x's memory, except where a channel is begun with relu=True."""
        ...

    def shapes(self, width: Shape) -> dict[int, Shape]:
        """Of what each peer sends, where this rank's own x has rows of `width`."""
        ...

    def out_shape(self, width: Shape) -> Shape:
        """Of R x on this rank, where its x has rows of `width`."""
        ...

    def unpack(self, parts: dict[int, Tensor], out: Tensor) -> Tensor: ...
