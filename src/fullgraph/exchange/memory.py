"""What one way of a channel remembers between steps, beside versions of rows: how it is saved and found again."""

from typing import Protocol

import torch
from torch import Tensor

from fullgraph.codec import Shape

ByPeer = dict[int, Tensor]  # rows, or a value of each, by the peer whose message they are


class Part(Protocol):
    """Something that is remembered, and is in the checkpoint."""

    def held(self) -> dict[str, Tensor]:
        """As named tensors."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """From what `held` gave; there may be other names beside."""
        ...

    def fits(self, sent: dict[int, Shape], come: dict[int, Shape], dtype: torch.dtype) -> bool:
        """Whether what was loaded is of messages of these shapes."""
        ...


def rows_of(state: dict[str, Tensor], prefix: str) -> ByPeer:
    """In peer order, as routes have it; a file has names in an order of its own, such as 0, 1, 10, 11, 2."""
    rows = {int(name.removeprefix(prefix)): rows for name, rows in state.items() if name.startswith(prefix)}
    return dict(sorted(rows.items()))


def are_shaped(rows: ByPeer, shapes: dict[int, Shape], dtype: torch.dtype) -> bool:
    """Whether there are rows of these shapes, for every peer."""
    same = {peer: tuple(value.shape) for peer, value in rows.items()} == shapes
    return same and {value.dtype for value in rows.values()} <= {dtype}
