"""When a message is sent and which version is read: pure functions of the step."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from fullgraph.values import Range, Value

Steps = Annotated[int, Range(1, 10**9)]
WarmUp = Annotated[int, Range(0, 10**9)]


@dataclass(frozen=True, slots=True)
class Turn:
    """The action of one step: whether it sends, and the step whose rows it reads (None: zeros)."""

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
    """Read the rows of this step:  v(t) = t."""

    depth: ClassVar[int] = 0

    def turn(self, step: int) -> Turn:
        return Turn(send=True, read=step)


@dataclass(frozen=True)
class Pipelined(Value):
    """Read the rows of `lag` steps ago while this step's rows travel:  v(t) = t - lag  (PipeGCN, arXiv:2203.10428).

    The first `warm_up` steps read their own rows; after that, zeros are read until there are rows.
    """

    lag: Steps = 1
    warm_up: WarmUp = 0

    @property
    def depth(self) -> int:
        return self.lag

    def turn(self, step: int) -> Turn:
        if step < self.warm_up:
            return Turn(send=True, read=step)
        return Turn(send=True, read=step - self.lag if step >= self.lag else None)


@dataclass(frozen=True)
class Bounded(Value):
    """Read last step's rows, and fresh ones every `refresh` steps:  v(t) = t if (t+1) % refresh == 0 else t-1.

    One step of lag, whose error starts over at each refresh (Sylvie, arXiv:2303.01277). refresh=1 is Sync. The first
    `warm_up` steps read their own rows.
    """

    refresh: Steps = 10
    warm_up: WarmUp = 0

    @property
    def depth(self) -> int:
        return 0 if self.refresh == 1 else 1

    def turn(self, step: int) -> Turn:
        if (step + 1) % self.refresh == 0 or step < self.warm_up:
            return Turn(send=True, read=step)
        return Turn(send=True, read=step - 1 if step else None)


@dataclass(frozen=True)
class Skip(Value):
    """Send every `every` steps, and read the rows that were sent last:  v(t) = t - t % every.  every=1 is Sync."""

    every: Steps = 2

    @property
    def depth(self) -> int:
        return self.every - 1

    def turn(self, step: int) -> Turn:
        return Turn(send=step % self.every == 0, read=step - step % self.every)


@dataclass(frozen=True, slots=True)
class Restarted:
    """The same schedule from step `began` on, without rows of earlier steps: a step that would read them reads its own.

    So the first steps after a new cut of the graph are exact, until the rows that are due have been sent.
    """

    schedule: Schedule
    began: int

    @property
    def depth(self) -> int:
        return self.schedule.depth

    def turn(self, step: int) -> Turn:
        turn = self.schedule.turn(step)
        return Turn(send=True, read=step) if turn.read is not None and turn.read < self.began else turn


def table(schedule: Schedule, steps: int) -> str:
    """The schedule as text, one line per step."""
    return "\n".join(f"{step}: {schedule.turn(step)}" for step in range(steps))
