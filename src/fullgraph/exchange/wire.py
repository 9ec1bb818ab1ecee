"""The free axes of a channel as values: when rows are read, in how many bits, and which rows cross."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from fullgraph.codec import Codec, Full
from fullgraph.errors import InputError
from fullgraph.exchange.channel import Channel
from fullgraph.exchange.clock import Clock
from fullgraph.exchange.inbox import Extras, Inbox
from fullgraph.exchange.own import asks_grades, checked_codec, checked_schedule, memory_of
from fullgraph.exchange.rows import FactsByMessage, Picks, RowFacts
from fullgraph.exchange.schedule import Restarted, Schedule, Sync
from fullgraph.exchange.state import Average, ChangeFilter, Drift, Residuals, Smooth
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
    smooth: Smooth | None = None
    feedback: bool = False  # add the codec's error of the previous message to each message
    share: float = 1.0  # share of the due rows that is drawn at random in every step
    turns: int = 1  # a row is due once in this many steps
    drift: Drift | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", checked_codec(self.codec))
        object.__setattr__(self, "backward", self.backward and checked_codec(self.backward))
        object.__setattr__(self, "schedule", checked_schedule(self.schedule))
        if not 0 <= self.share <= 1 or self.turns < 1:
            raise InputError(f"share={self.share}, turns={self.turns}: a share is from 0 to 1, and turns are 1 or more")

    @property
    def late(self) -> bool:
        """Whether rows may be read after the step that sent them."""
        return self.schedule.depth > 0

    @property
    def graded(self) -> bool:
        """Whether a codec needs the grades of rows."""
        return any(asks_grades(codec) for codec in (self.codec, self.backward) if codec is not None)

    def at(self, layer: int) -> "Wire":
        """The wire of a layer: the same for all layers."""
        return self

    def build(
        self, *, name: str, route: Route, transport: Transport, clock: Clock, facts: RowFacts | None = None
    ) -> Channel:
        codec, backward, smooth, drift = self.codec, self.backward or self.codec, self.smooth, self.drift
        schedule = Restarted(self.schedule, clock.began) if clock.began else self.schedule
        there = Key(name, 0, "forward", use=clock.use, run=clock.seed)
        facts = facts or RowFacts()
        told = partial(FactsByMessage, facts, facts.route or route, transport, name)
        picks = self._picks(facts.route or route, clock, facts)
        features = Extras(
            average=Average(smooth, clock.began) if smooth and smooth.features else None,
            residuals=Residuals() if self.feedback else None,
            picks=picks,
            changes=ChangeFilter(drift, picks) if drift else None,
            memory=memory_of(codec, told(gradients=False)),
        )
        gradients = Extras(
            average=Average(smooth, clock.began) if smooth and smooth.gradients else None,
            residuals=Residuals() if self.feedback else None,
            picks=picks and picks.T,
            changes=ChangeFilter(drift, picks and picks.T) if drift and drift.gradients else None,
            memory=memory_of(backward, told(gradients=True)),
        )
        channel = Channel(
            route,
            clock,
            Inbox(there, route, codec, schedule, transport, features),
            Inbox(replace(there, way="backward"), route.T, backward, schedule, transport, gradients),
        )
        if clock.use == "rows":
            clock.channels[name] = channel
        return channel

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

    def at(self, layer: int) -> Wire:
        return self.other if layer == self.layer else self.wire
