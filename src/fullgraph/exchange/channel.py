"""A channel: one route, read on one schedule, in one codec, over one transport."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fullgraph.codec import Codec, Full, MinVariance
from fullgraph.errors import InputError
from fullgraph.exchange.bits import Bits
from fullgraph.exchange.drift import Drift, News
from fullgraph.exchange.facts import RowFacts, told_squares
from fullgraph.exchange.feedback import Residuals
from fullgraph.exchange.inbox import Held, Inbox, Manner, settled
from fullgraph.exchange.lateness import Lateness
from fullgraph.exchange.picks import Picks
from fullgraph.exchange.schedule import Schedule, Sync
from fullgraph.exchange.smooth import Average, Smooth
from fullgraph.exchange.tape import Tape
from fullgraph.plan import Route
from fullgraph.report import Meter
from fullgraph.transport import Key, Transport, Use


class Clock:
    """The step number, -1 before the first, and the loss of every step so far, as all ranks know it.

    The trainer owns it, channels only read it. `use` is what the messages of its steps are for, `seed` the run's, from
    which codecs draw. It also tells channels of a part of a step that runs forward twice, because its backward pass
    computes again what it did not keep. `channels` are those of training
    that follow it, and `meter` hears of their work. Gradients of rows that nobody reads in this step can make way for
    what is waited for.
    """

    def __init__(self, step: int = -1, use: Use = "other", seed: int = 0) -> None:
        self.step, self.use, self.seed = step, use, seed
        self.losses: list[float] = []
        self.lateness = Lateness()
        self.channels: dict[str, Channel] = {}  # by name
        self.meter: Meter | None = None
        self.again = False  # within a second forward pass: nothing is sent
        self._tape: Tape | None = None
        self._sends: list[Callable[[], None]] | None = None  # that make way; None: nothing does

    def tick(self) -> None:
        self.step += 1

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Around a backward pass and the sums of its gradients: late gradients of rows leave when it is over.

        All ranks wait for the sums, and share their links with what is sent before. Rows that are read in the next
        step come in time all the same.
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
        """Send now, or after what goes first."""
        if self._sends is None:
            send()
        else:
            self._sends.append(send)

    def retire(self) -> None:
        """From this step on none of the channels so far sends anything; late rows that nobody will read come first."""
        for channel in self.channels.values():
            channel.until = min(channel.until, self.step)
            settled(channel.held())

    def span(self, kind: str, key: Key) -> AbstractContextManager[None]:
        """Around a piece of work for messages of a channel."""
        return nullcontext() if self.meter is None else self.meter.span(kind, key)

    def twice(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Around the first forward pass of a part of a step, and around its second."""
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
        """What `receive` brings from other ranks; in a second forward pass, what it brought in the first."""
        if self._tape is not None and self.again:
            return self._tape.replay()
        tensor = receive()
        if self._tape is not None:
            self._tape.record(tensor)
        return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The free axes of a channel: when it is read, in how many bits (gradients may take another codec), and how it is
    smoothed or corrected; which rows cross at a step (`share`, `turns`: see picks.py), and whether any do (`drift`).
    """

    schedule: Schedule = field(default_factory=Sync)
    codec: Codec = field(default_factory=Full)
    backward: Codec | None = None
    smooth: Smooth | None = None
    feedback: bool = False  # add to each message what the codec dropped from the one before
    share: float = 1.0  # of the rows that are due, drawn by chance in every step
    turns: int = 1  # a row is due every so many steps
    drift: Drift | None = None
    graded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.turns < 1:
            raise InputError(f"share={self.share}, turns={self.turns}: a share is from 0 to 1, and turns are 1 or more")

    def at(self, layer: int) -> "Wire":
        """The wire of a layer: this one for all."""
        return self

    def build(
        self, *, name: str, route: Route, transport: Transport, clock: Clock, facts: RowFacts | None = None
    ) -> "Channel":
        codec, backward, smooth, drift = self.codec, self.backward or self.codec, self.smooth, self.drift
        picks, there = self._picks(route, clock, facts), Key(name, 0, "forward", use=clock.use, run=clock.seed)
        squares = told_squares(facts, name, route, transport) if isinstance(codec, MinVariance) and facts else None
        features = Manner(
            average=Average(smooth) if smooth and smooth.features else None,
            residuals=Residuals() if self.feedback else None,
            picks=picks,
            news=News(drift, picks) if drift else None,
            bits=Bits(codec, squares) if isinstance(codec, MinVariance) else None,
        )
        gradients = Manner(
            average=Average(smooth) if smooth and smooth.gradients else None,
            residuals=Residuals() if self.feedback else None,
            picks=picks and picks.T,
            news=News(drift, picks and picks.T) if drift and drift.gradients else None,
            bits=Bits(backward, None) if isinstance(backward, MinVariance) else None,
        )
        channel = Channel(
            route,
            clock,
            Inbox(there, route, codec, self.schedule, transport, features),
            Inbox(replace(there, way="backward"), route.T, backward, self.schedule, transport, gradients),
        )
        if clock.use == "rows":
            clock.channels[name] = channel
        return channel

    def _picks(self, route: Route, clock: Clock, facts: RowFacts | None) -> Picks | None:
        if self.share == 1 and self.turns == 1:
            return None
        ids, summed = (None, None) if facts is None else (facts.ids, facts.summed)
        assert ids is not None, "a placement tells the ids of halo rows"
        if self.share < 1 and summed is None:
            raise InputError(
                f"share={self.share} leaves rows out, and a model of your own may do more with them than add them up; "
                "use one of our models, or share=1"
            )
        sent, come = ids.by_peer(route)
        return Picks(share=self.share, turns=self.turns, seed=clock.seed, sent=sent, come=come, summed=bool(summed))


class Builder(Protocol):
    """Makes the channel of a layer."""

    def build(
        self, *, name: str, route: Route, transport: Transport, clock: Clock, facts: RowFacts | None
    ) -> "Channel": ...


class Wires(Protocol):
    """What the channel of every layer does; `graded` if it asks for the grades of rows."""

    @property
    def graded(self) -> bool: ...
    def at(self, layer: int) -> Builder: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Except:
    """One wire for all layers but one."""

    wire: Wire
    layer: int
    other: Wire
    graded: ClassVar[bool] = False

    def at(self, layer: int) -> Wire:
        return self.other if layer == self.layer else self.wire


class Channel:
    """Moves rows along a route and their gradients back along its transpose.

    The work that hides the wire stands between the two calls, in both passes:

        x, token = channel.begin(x)
        inner = adj_inner @ x
        halo = channel.end(token)
    """

    def __init__(self, route: Route, clock: Clock, features: Inbox, gradients: Inbox) -> None:
        self.route, self.clock, self.features, self.gradients = route, clock, features, gradients
        self.since, self.until = clock.step, sys.maxsize  # steps in which it is used

    def begin(
        self, x: Tensor, *, relu: bool = False, mapped: bool = False, device: torch.device | None = None
    ) -> tuple[Tensor, Tensor]:
        """Post the rows of x (of relu(x)) that peers read; returns x itself, and the token that `end` takes.

        Peers are sent relu(x) although x passes through bare, so that its owner can fuse the activation with
        the dropout that must come after the exchange. mapped: all that is done with x here is such a map, whose
        backward pass makes a new tensor; what peers return is then added to that one, not to a copy of it.
        device: of what peers send, where x is rows that stay in the host's memory.
        """
        x, token = Begin.apply(x, self, relu, mapped, device or x.device)  # type: ignore[no-untyped-call]
        return x, token

    def held(self) -> Held:
        """Everything later steps may read, under names."""
        ways = {"forward": self.features, "backward": self.gradients}
        return {f"{way}.{name}": value for way, inbox in ways.items() for name, value in inbox.held().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for way, inbox in {"forward": self.features, "backward": self.gradients}.items():
            inbox.load_state({n.removeprefix(f"{way}."): v for n, v in state.items() if n.startswith(f"{way}.")})

    def absent(self, count: int) -> Tensor | None:
        """Which of the `count` rows that `end` gave were drawn out of it and stand for nothing; None: none of them."""
        by_peer = self.features.absent
        if not any(bool(rows.any()) for rows in by_peer.values()):
            return None
        return self.route.unpack(by_peer, torch.zeros(count, dtype=torch.bool))

    def look(self, used: dict[int, Tensor] | None, step: int) -> None:
        """Compare late rows with today's, in a step of training that does so."""
        if self.clock.use == "rows" and self.clock.lateness.looks(step):
            fresh = self.features.fresher(step)
            if fresh is not None:
                self.clock.lateness.add(used, fresh)

    def end(self, token: Tensor) -> Tensor:
        """The rows peers sent, of the version that is due."""
        halo: Tensor = End.apply(token, self)  # type: ignore[no-untyped-call]
        return halo


class Begin(torch.autograd.Function):
    """forward: post rows x_t.  backward: read the returned gradients of version v(t) and add them."""

    @staticmethod
    def forward(ctx, x: Tensor, channel: Channel, relu: bool, mapped: bool, device: torch.device):  # type: ignore[no-untyped-def]
        with channel.clock.span("pack", channel.features.key):
            packed = channel.route.pack(x)
            if relu:
                packed = {peer: rows.relu_() for peer, rows in packed.items()}
                ctx.save_for_backward(*(rows > 0 for rows in packed.values()))
        ctx.channel, ctx.step, ctx.relu, ctx.mapped = channel, channel.clock.step, relu, mapped
        token = x.new_empty((0, *x.shape[1:]), device=device)
        if not channel.clock.again:
            channel.features.post(packed, token, ctx.step)
        return x.view_as(x), token

    @staticmethod
    def backward(ctx, grad: Tensor, _token: Tensor):  # type: ignore[no-untyped-def]
        returned = ctx.channel.gradients.read(ctx.step)
        if not returned:
            return grad, None, None, None, None
        with ctx.channel.clock.span("unpack", ctx.channel.gradients.key):
            if ctx.relu:
                gates = zip(returned.items(), ctx.saved_tensors, strict=True)
                returned = {peer: rows * gate for (peer, rows), gate in gates}
            added = ctx.channel.route.T.unpack(returned, grad if ctx.mapped else grad.clone())
        return added, None, None, None, None


class End(torch.autograd.Function):
    """forward: read the rows of version v(t).  backward: post the gradients of those rows."""

    @staticmethod
    def forward(ctx, token: Tensor, channel: Channel):  # type: ignore[no-untyped-def]
        ctx.channel, ctx.step, ctx.token = channel, channel.clock.step, token.shape

        def receive() -> Tensor:
            halo = token.new_zeros(channel.route.out_shape(tuple(token.shape[1:])))
            rows = channel.features.read(ctx.step)
            channel.look(rows, ctx.step)
            with channel.clock.span("unpack", channel.features.key):
                return halo if rows is None else channel.route.unpack(rows, halo)

        return channel.clock.once(receive)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        channel = ctx.channel
        with channel.clock.span("pack", channel.gradients.key):
            packed = channel.route.T.pack(grad.contiguous())
        channel.gradients.post(packed, grad, ctx.step, channel.clock.later)
        return grad.new_empty(ctx.token), None
