"""When a message is sent and which version is read: pure functions of the step."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """What one step does: whether it sends, and the step whose rows it reads (None: zeros)."""

    send: bool
    read: int | None

    def __str__(self) -> str:
        return f"{'send' if self.send else 'keep'}, read {'nothing' if self.read is None else self.read}"


class Schedule(Protocol):
    """A pure function of the step; `depth` is the largest lag it ever reads."""

    @property
    def depth(self) -> int: ...
    def turn(self, step: int) -> Turn: ...


@dataclass(frozen=True, slots=True)
class Sync:
    """Read today's rows:  v(t) = t."""

    depth: int = 0

    def turn(self, step: int) -> Turn:
        return Turn(send=True, read=step)
