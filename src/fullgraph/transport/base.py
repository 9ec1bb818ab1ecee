"""Which medium: the protocol of a transport."""

from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from fullgraph.transport.key import Key

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Pending(Protocol[T_co]):
    """Something under way; `wait` may be called more than once."""

    def wait(self) -> T_co: ...


class Ready(Generic[T]):
    """A pending that is already here."""

    def __init__(self, value: T) -> None:
        self.value = value

    def wait(self) -> T:
        return self.value


class Coding(Protocol):
    """How rows become bytes and come back; a transport may use it on a thread of its own, in the order of posting."""

    def nbytes(self, peer: int, rows: Tensor) -> int: ...
    def encode(self, peer: int, rows: Tensor) -> Tensor: ...
    def decode(self, peer: int, wire: Tensor) -> Tensor: ...


class Plain:
    """Rows that are bytes already."""

    def nbytes(self, peer: int, rows: Tensor) -> int:
        return rows.numel()

    def encode(self, peer: int, rows: Tensor) -> Tensor:
        return rows

    def decode(self, peer: int, wire: Tensor) -> Tensor:
        return wire


PLAIN: Coding = Plain()


class Transport(Protocol):
    """Moves rows between ranks as bytes; owns groups, threads, streams and wire buffers."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def begin(
        self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int], coding: Coding = PLAIN
    ) -> Pending[dict[int, Tensor]]:
        """Send each peer its rows, and expect `incoming[peer]` bytes from each; waiting gives the rows in them."""
        ...

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        """The sum of x over all ranks, in place."""
        ...

    def fork(self) -> "Transport":
        """The same ranks with a queue of its own: what waits here holds up nothing there. All ranks fork together."""
        ...

    def away(self, text: str) -> AbstractContextManager[None]:
        """Around a call that lets no other thread run for long: the others must not take its silence for death."""
        ...

    def close(self) -> None: ...
