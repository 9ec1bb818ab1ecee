"""The step number, and the state of a step that channels and the trainer share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.exchange.inbox import settled
from fullgraph.report import Meter
from fullgraph.transport import Key, Use

if TYPE_CHECKING:
    from fullgraph.exchange.channel import Channel

LOOK_EVERY = 20  # steps; each comparison waits for rows that would otherwise be read later


class Tape:
    """Records what a block receives in its first forward pass, and replays it in the second, in which nothing is sent.

    Tensors are in the order of their calls, which must be the same in both passes.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.next = 0

    def record(self, tensor: Tensor) -> None:
        self.tensors.append(tensor.detach())

    def rewind(self) -> None:
        self.next = 0

    def replay(self) -> Tensor:
        self.next += 1
        return self.tensors[self.next - 1].detach()  # a new tensor: autograd gives it another function


class Lateness:
    """The distance of late rows from fresh ones: |used - fresh|^2 and |fresh|^2 over all channels, in compared steps.

    Only rows before any dropout are compared, because each step has its own dropout masks.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @staticmethod
    def looks(step: int) -> bool:
        """Whether rows are compared in a step: one step before schedules with refresh 5, 10 or 20 read fresh rows."""
        return step % LOOK_EVERY == LOOK_EVERY - 2

    def add(self, used: Mapping[int, Tensor] | None, fresh: Mapping[int, Tensor]) -> None:
        """Add the difference of rows by peer. used: None if zeros were read."""
        for peer, rows in fresh.items():
            off = rows if used is None else rows - used[peer]
            sums = torch.stack([off.float().square().sum(), rows.float().square().sum()])
            self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> tuple[float, float]:
        """The sums since the last call."""
        sums, self._sums = self._sums, None
        if sums is None:
            return 0.0, 0.0
        off, all_ = sums.tolist()
        return off, all_


class Clock:
    """The step number, -1 before the first step, and the loss of every step so far, as all ranks know it.

    The trainer owns the clock; channels only read it. `use` is the purpose of its steps' messages. `seed` is the run's;
    codecs draw from it. `channels` are the training channels that follow it, and `meter` receives their work. The clock
    also tells channels about a part of a step that runs forward twice (`twice`), and can delay late gradients of rows
    until the gradient all-reduce is over (`making_way`). `began` is the step in which channels began without any rows
    of earlier steps: 0, or the first step after the graph was cut again.
    """

    def __init__(self, step: int = -1, use: Use = "other", seed: int = 0) -> None:
        self.step, self.use, self.seed = step, use, seed
        self.began = 0
        self.losses: list[float] = []
        self.lateness = Lateness()
        self.channels: dict[str, Channel] = {}  # by name
        self.meter: Meter | None = None
        self.again = False  # in a second forward pass: nothing is sent
        self.dropped = False  # dropout changed rows of this step: later rows differ by their masks
        self._tape: Tape | None = None
        self._sends: list[Callable[[], None]] | None = None  # postponed sends; None: nothing is postponed

    def tick(self) -> None:
        self.step += 1
        self.dropped = False

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Enclose a backward pass and its gradient all-reduce: late gradients of rows are sent afterwards.

        All ranks wait for the all-reduce, and earlier messages would share its links. Rows that are read in the next
        step still arrive in time.
        """
        self._sends = []
        try:
            yield
            sends = self._sends
        finally:
            self._sends = None
        for send in sends:
            send()

    def later(self, send: Callable[[], None]) -> None:
        """Send now, or after the gradient all-reduce."""
        if self._sends is None:
            send()
        else:
            self._sends.append(send)

    def retire(self) -> None:
        """Stop all existing channels from this step on, after waiting for their pending messages."""
        for channel in self.channels.values():
            channel.until = min(channel.until, self.step)
            settled(channel.held())

    def span(self, kind: str, key: Key) -> AbstractContextManager[None]:
        """Measure a piece of work for a channel's messages."""
        return nullcontext() if self.meter is None else self.meter.span(kind, key)

    def twice(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for the first and for the second forward pass of a part of a step."""
        tape = Tape()
        return self._on(tape, again=False), self._on(tape, again=True)

    @contextmanager
    def _on(self, tape: Tape, *, again: bool) -> Iterator[None]:
        before = self._tape, self.again
        tape.rewind()
        self._tape, self.again = tape, again
        try:
            yield
        finally:
            self._tape, self.again = before

    def once(self, receive: Callable[[], Tensor]) -> Tensor:
        """The result of `receive`; in a second forward pass, the result that the first one recorded."""
        if self._tape is not None and self.again:
            return self._tape.replay()
        tensor = receive()
        if self._tape is not None:
            self._tape.record(tensor)
        return tensor
