"""Which medium: the protocol of a transport, and the error a run dies of when a peer is gone."""

from typing import Generic, Protocol, TypeVar

from torch import Tensor

from fullgraph.transport.key import Key

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class PeerLost(RuntimeError):
    """A message never came, or its connection broke; the text names the ranks and the message."""


class Pending(Protocol[T_co]):
    """Something under way; `wait` may be called more than once."""

    def wait(self) -> T_co: ...


class Ready(Generic[T]):
    """A pending that is already here."""

    def __init__(self, value: T) -> None:
        self.value = value

    def wait(self) -> T:
        return self.value


class Transport(Protocol):
    """Moves bytes between ranks; owns groups, streams and wire buffers."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def begin(self, key: Key, outgoing: dict[int, Tensor], incoming: dict[int, int]) -> Pending[dict[int, Tensor]]:
        """Send each peer its bytes and expect `incoming[peer]` bytes from each."""
        ...

    def all_reduce(self, key: Key, x: Tensor) -> Pending[Tensor]:
        """The sum of x over all ranks, in place."""
        ...

    def close(self) -> None: ...
