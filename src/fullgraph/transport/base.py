"""The protocol of a transport."""

from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from fullgraph.transport.key import Key

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
ByPeer = dict[int, Tensor]  # rows, or their bytes, by the peer that they go to or come from
Sizes = dict[int, int]  # bytes by peer


class Pending(Protocol[T_co]):
    """A result that is still on its way; `wait` may be called more than once."""

    def wait(self) -> T_co: ...


class Ready(Generic[T]):
    """A pending result that has already arrived."""

    def __init__(self, value: T) -> None:
        self.value = value

    def wait(self) -> T:
        return self.value


class Coding(Protocol):
    """Turns rows into bytes and back. A transport may call it on another thread, in the order of posting."""

    def nbytes(self, peer: int, rows: Tensor) -> int: ...
    def encode(self, peer: int, rows: Tensor) -> Tensor: ...
    def decode(self, peer: int, wire: Tensor) -> Tensor: ...


class Plain:
    """The coding of rows that are bytes already."""

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
    def begin(self, key: Key, outgoing: ByPeer, incoming: Sizes, coding: Coding = PLAIN) -> Pending[ByPeer]:
        """Send rows to each peer and expect `incoming[peer]` bytes from each; `wait` returns the received rows."""
        ...

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        """Sum x over all ranks, in place."""
        ...

    def fork(self) -> "Transport":
        """Return a transport with the same ranks and a separate queue: neither waits for the other.

        All ranks must fork together.
        """
        ...

    def away(self, text: str) -> AbstractContextManager[None]:
        """Enclose a long call that blocks all other threads, so that peers do not think that this rank died."""
        ...

    def close(self) -> None: ...
