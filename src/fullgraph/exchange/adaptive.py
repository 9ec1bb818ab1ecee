"""Wires that adapt during a run: their bits follow in-degrees and the loss, and their lag may follow the loss."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from torch import Tensor

from fullgraph.codec.graded import Graded
from fullgraph.codec.lowbit import CHOICES, LowBit
from fullgraph.exchange.channel import Channel
from fullgraph.exchange.clock import Clock
from fullgraph.exchange.rows import RowFacts
from fullgraph.exchange.schedule import Schedule, Sync, Turn
from fullgraph.exchange.wire import Wire
from fullgraph.plan import Route
from fullgraph.transport import Key, Transport
from fullgraph.values import Range, Value


class Trend:
    """After every `tau` steps: does the smoothed loss fall more slowly than over the tau steps before?

    smoothed = alpha smoothed + (1 - alpha) loss. A pure function of the losses so far, so there is nothing to save.
    """

    def __init__(self, losses: Sequence[float], *, tau: int, alpha: float) -> None:
        self.losses, self.tau, self.alpha = losses, tau, alpha
        self.marks: list[float] = []  # the smoothed loss after each tau steps
        self._read, self._smoothed = 0, 0.0

    def slower(self, step: int) -> list[bool]:
        """The verdicts that are known at the start of `step`, oldest first; the first one needs 3 tau steps."""
        while self._read < min(step, len(self.losses)):
            loss = self.losses[self._read]
            self._smoothed = self.alpha * self._smoothed + (1 - self.alpha) * loss if self._read else loss
            self._read += 1
            if self._read % self.tau == 0:
                self.marks.append(self._smoothed)
        marks = self.marks[: step // self.tau]
        return [b - c < a - b for a, b, c in zip(marks, marks[1:], marks[2:], strict=False)]

    def bits(self, start: int, step: int) -> int:
        """`start`, doubled at each verdict "slower" and halved at each other one, from 1 to 8."""
        for slower in self.slower(step):
            start = min(2 * start, CHOICES[-1]) if slower else max(start // 2, 1)
        return start


@dataclass(frozen=True, slots=True, eq=False)
class Switch:
    """Read fresh rows while the loss falls more slowly than before; else the previous step's rows."""

    trend: Trend
    depth: int = 1

    def turn(self, step: int) -> Turn:
        if (self.trend.slower(step) or [False])[-1]:
            return Turn(send=True, read=step)
        return Turn(send=True, read=step - 1 if step else None)


@dataclass(frozen=True, kw_only=True)
class Adaptive(Value):
    """Low-bit wires whose bits follow a node's in-degree and the run's loss  (Sylvie's later version, ICDE 2024).

    Nodes that other ranks read (in a mixture and between stages, all nodes) are divided into quarters by in-degree,
    over all ranks. The lowest quarter takes b bits, the next 2 b, then 4 b and 8 b, at most 8. b doubles if the loss
    falls more slowly, and halves if it does not (see `Trend`). `switch`: the same verdict chooses between fresh rows
    and rows that are one step late.
    """

    bits: int = 1
    tau: Annotated[int, Range(1, 10**9)] = 10
    alpha: Annotated[float, Range(0, 1, below=True)] = 0.9
    schedule: Schedule = field(default_factory=Sync)
    switch: bool = False
    feedback: bool = False
    exact_step: int | None = None
    graded: ClassVar[bool] = True
    follows: ClassVar[bool] = True  # needs the results of steps

    def __post_init__(self) -> None:
        super().__post_init__()
        LowBit(self.bits)

    @property
    def late(self) -> bool:
        """Whether rows may be read after the step that sent them."""
        return self.switch or self.schedule.depth > 0

    def at(self, layer: int) -> "Adaptive":
        return self

    def exact_after(self, step: int) -> "Adaptive":
        return replace(self, exact_step=step)

    def build(self, *, name: str, route: Route, transport: Transport, clock: Clock, facts: RowFacts | None) -> Channel:
        grades = None if facts is None else facts.grades
        assert facts is not None
        assert grades is not None, "a placement computes the grades that a graded wire asks for"
        trend = Trend(clock.losses, tau=self.tau, alpha=self.alpha)
        owned, halo = grades.by_peer(facts.route or route)

        def grades_of(key: Key) -> Tensor:
            assert key.ends is not None, f"{key} does not say who sends"
            sender, receiver = key.ends
            outward = sender == transport.rank
            peer = receiver if outward else sender
            return owned[peer] if outward == (key.way == "forward") else halo[peer]

        wire = Wire(
            schedule=Switch(trend) if self.switch else self.schedule,
            codec=Graded(lambda step: trend.bits(self.bits, step), grades_of),
            feedback=self.feedback,
            exact_step=self.exact_step,
        )
        return wire.build(name=name, route=route, transport=transport, clock=clock, facts=facts)
