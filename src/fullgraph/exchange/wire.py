"""The free axes of a channel as values: when rows are read, in how many bits, and which rows cross."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from fullgraph.codec import Codec, Full
from fullgraph.errors import InputError
from fullgraph.exchange.channel import Channel
from fullgraph.exchange.clock import Clock
from fullgraph.exchange.ending import Ending
from fullgraph.exchange.inbox import Extras, Inbox
from fullgraph.exchange.lateness import Movement
from fullgraph.exchange.most import MostMoved
from fullgraph.exchange.own import asks_grades, checked_codec, checked_schedule, memory_of
from fullgraph.exchange.rows import FactsByMessage, Picks, RowFacts
from fullgraph.exchange.schedule import Measured, Restarted, Schedule, Steady, Sync
from fullgraph.exchange.state import Average, ChangeFilter, Drift, Extrapolate, Line, Residuals, Smooth
from fullgraph.plan import Route
from fullgraph.transport import Key, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The free choices of a channel: schedule, codec (gradients may have another), smoothing and feedback; and which
    rows cross in a step (`share`, `turns`: see rows.py; `drift`: only rows that changed).
    """

    schedule: Schedule = field(default_factory=Sync)
    codec: Codec = field(default_factory=Full)
    backward: Codec | None = None
    smooth: Smooth | Extrapolate | None = None
    feedback: bool = False  # add the codec's error of the previous message to each message
    share: float = 1.0  # share of the due rows that is drawn at random in every step
    turns: int = 1  # a row is due once in this many steps
    drift: Drift | None = None
    most: float = 1.0  # share of the rows of a message that crosses: those that moved most since they were sent
    exact_step: int | None = None  # from this step on, all rows cross, fresh and in full precision

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", checked_codec(self.codec))
        object.__setattr__(self, "backward", self.backward and checked_codec(self.backward))
        object.__setattr__(self, "schedule", checked_schedule(self.schedule))
        if not 0 <= self.share <= 1 or self.turns < 1:
            raise InputError(f"share={self.share}, turns={self.turns}: a share is from 0 to 1, and turns are 1 or more")

        if not 0 < self.most <= 1 or (self.most < 1 and (self.share < 1 or self.turns > 1 or self.drift)):
            raise InputError(
                f"most={self.most:g}: give a share above 0, up to 1; share, turns and bound choose rows too"
            )

    @property
    def late(self) -> bool:
        """Whether rows may be read after the step that sent them."""
        return self.schedule.depth > 0

    @property
    def follows(self) -> bool:
        """Whether it needs the results of steps, which a loop of one's own has to give."""
        return isinstance(self.schedule, Steady)

    @property
    def graded(self) -> bool:
        """Whether a codec needs the grades of rows."""
        return any(asks_grades(codec) for codec in (self.codec, self.backward) if codec is not None)

    def at(self, layer: int) -> "Wire":
        """The wire of a layer: the same for all layers."""
        return self

    def exact_after(self, step: int) -> "Wire":
        """The same wire until a step, and exact from that step on."""
        return replace(self, exact_step=step)

    def build(
        self, *, name: str, route: Route, transport: Transport, clock: Clock, facts: RowFacts | None = None
    ) -> Channel:
        codec, backward, smooth, drift = self.codec, self.backward or self.codec, self.smooth, self.drift
        there = Key(name, 0, "forward", use=clock.use, run=clock.seed)
        facts = facts or RowFacts()
        told = partial(FactsByMessage, facts, facts.route or route, transport, name)
        picks = self._picks(facts.route or route, clock, facts)
        follows = isinstance(self.schedule, Steady)
        schedule = Measured(self.schedule.drift, clock.drifts) if isinstance(self.schedule, Steady) else self.schedule
        schedule = Restarted(schedule, clock.began) if clock.began else schedule
        features = Extras(
            average=_over_steps(smooth, clock.began) if smooth and smooth.features else None,
            residuals=Residuals() if self.feedback else None,
            picks=picks,
            changes=ChangeFilter(drift, picks) if drift else None,
            memory=memory_of(codec, told(gradients=False)),
            moves=Movement(clock.drift) if follows and clock.use == "rows" else None,
            most=MostMoved(self.most) if self.most < 1 else None,
        )
        gradients = Extras(
            average=_over_steps(smooth, clock.began) if smooth and smooth.gradients else None,
            residuals=Residuals() if self.feedback else None,
            picks=picks and picks.T,
            changes=ChangeFilter(drift, picks and picks.T) if drift and drift.gradients else None,
            memory=memory_of(backward, told(gradients=True)),
            most=MostMoved(self.most) if self.most < 1 else None,
        )
        channel = Channel(
            route,
            clock,
            self._ended(Inbox(there, route, codec, schedule, transport, features)),
            self._ended(Inbox(replace(there, way="backward"), route.T, backward, schedule, transport, gradients)),
        )
        if clock.use == "rows":
            clock.channels[name] = channel
        return channel

    def _ended(self, inbox: Inbox) -> Inbox | Ending:
        """The inbox, with an exact one after it if the run has an exact end."""
        if self.exact_step is None:
            return inbox
        return Ending(inbox, Inbox(inbox.key, inbox.route, Full(), Sync(), inbox.transport, Extras()), self.exact_step)

    def _picks(self, route: Route, clock: Clock, facts: RowFacts) -> Picks | None:
        if self.share == 1 and self.turns == 1:
            return None
        ids, summed = facts.ids, facts.summed
        assert ids is not None, "a placement tells the ids of halo rows"
        if self.share < 1 and summed is None:
            raise InputError(
                f"share={self.share} leaves rows out, and a model of your own may do more with them than add them up; "
                "use one of our models, or share=1"
            )
        sent, come = ids.by_peer(route)
        of_run = {"seed": clock.seed, "began": clock.began}
        return Picks(share=self.share, turns=self.turns, sent=sent, come=come, summed=bool(summed), **of_run)


def _over_steps(smooth: Smooth | Extrapolate, began: int) -> Average | Line:
    return Average(smooth, began) if isinstance(smooth, Smooth) else Line()


class Builder(Protocol):
    """Builds the channel of a layer."""

    @property
    def late(self) -> bool: ...
    def build(
        self, *, name: str, route: Route, transport: Transport, clock: Clock, facts: RowFacts | None
    ) -> Channel: ...


class Wires(Protocol):
    """The wire of every layer; `graded` if a wire needs the grades of rows."""

    @property
    def graded(self) -> bool: ...
    def at(self, layer: int) -> Builder: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Except:
    """One wire for all layers except one."""

    wire: Wire
    layer: int
    other: Wire

    @property
    def graded(self) -> bool:
        return self.wire.graded or self.other.graded

    @property
    def follows(self) -> bool:
        return self.wire.follows or self.other.follows

    def exact_after(self, step: int) -> "Except":
        return replace(self, wire=self.wire.exact_after(step), other=self.other.exact_after(step))

    def at(self, layer: int) -> Wire:
        return self.other if layer == self.layer else self.wire
