"""A channel: one route, read on one schedule, in one codec, over one transport."""

import sys

import torch
from torch import Tensor

from fullgraph.exchange.clock import Clock
from fullgraph.exchange.ending import Ending
from fullgraph.exchange.inbox import Held, Inbox
from fullgraph.plan import Route


class Channel:
    """Moves rows along a route and their gradients back along its transpose.

    The work that overlaps the exchange stands between the two calls, in both passes:

        x, token = channel.begin(x)
        inner = adj_inner @ x
        halo = channel.end(token)
    """

    def __init__(self, route: Route, clock: Clock, features: Inbox | Ending, gradients: Inbox | Ending) -> None:
        self.route, self.clock, self.features, self.gradients = route, clock, features, gradients
        self.since, self.until = clock.step, sys.maxsize  # steps in which it is used
        self._comparable = True  # whether the rows posted last can be compared with another step's

    def begin(
        self, x: Tensor, *, relu: bool = False, mapped: bool = False, device: torch.device | None = None
    ) -> tuple[Tensor, Tensor]:
        """Post the rows of x (or of relu(x)) that peers read; return x itself, and the token for `end`.

        relu: peers receive relu(x), but x itself is returned, so that its owner can fuse the activation with the
        dropout after the exchange. mapped: x is only used in such a map here. The map's backward pass creates a new
        tensor, so returned gradients are added to that tensor without a copy. device: the device of the sent rows, if x
        stays in host memory.
        """
        self._comparable = not self.clock.dropped
        x, token = Begin.apply(x, self, relu, mapped, device or x.device)  # type: ignore[no-untyped-call]
        return x, token

    def held(self) -> Held:
        """Everything that later steps may read, by name."""
        ways = {"forward": self.features, "backward": self.gradients}
        return {f"{way}.{name}": value for way, inbox in ways.items() for name, value in inbox.held().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        for way, inbox in {"forward": self.features, "backward": self.gradients}.items():
            inbox.load_state({n.removeprefix(f"{way}."): v for n, v in state.items() if n.startswith(f"{way}.")})

    def absent(self, count: int) -> Tensor | None:
        """Mask over the `count` rows from `end`: true for rows that were not drawn. None: all rows crossed."""
        by_peer = self.features.absent
        if not any(bool(rows.any()) for rows in by_peer.values()):
            return None
        return self.route.unpack(by_peer, torch.zeros(count, dtype=torch.bool))

    def look(self, used: dict[int, Tensor] | None, step: int) -> None:
        """Compare late rows with this step's rows, in the training steps that do so, before any dropout."""
        if self.clock.use == "rows" and self._comparable and self.clock.lateness.looks(step):
            fresh = self.features.fresher(step)
            if fresh is not None:
                self.clock.lateness.compare(used, fresh)

    def end(self, token: Tensor) -> Tensor:
        """The rows that peers sent, in the version that is due."""
        halo: Tensor = End.apply(token, self)  # type: ignore[no-untyped-call]
        return halo


class Hop:
    """One direction of a channel between two ranks: one sends its rows, the other expects and then takes them.

    If a step runs in pieces, autograd does not cross ranks: the executor of the pieces calls these methods.
    """

    def __init__(self, inbox: Inbox | Ending) -> None:
        self._inbox = inbox

    def send(self, rows: Tensor, step: int) -> None:
        """Post rows. The sender never reads them, so the finished sends of earlier steps are dropped here."""
        self._inbox.drop_before(step)
        self._inbox.post(self._inbox.route.pack(rows), rows, step)

    def expect(self, like: Tensor, step: int) -> None:
        """Start receiving the rows as soon as they arrive."""
        self._inbox.post({}, like, step)

    def take(self, rows: int, like: Tensor, step: int) -> Tensor:
        """The peer's rows; zeros if nothing is due yet, no rows if the chunk has none."""
        for came in (self._inbox.read(step) or {}).values():
            return came
        return like.new_zeros(rows, like.shape[1])


class Begin(torch.autograd.Function):
    """forward: post rows x_t.  backward: read the returned gradients of version v(t) and add them."""

    @staticmethod
    def forward(ctx, x: Tensor, channel: Channel, relu: bool, mapped: bool, device: torch.device):  # type: ignore[no-untyped-def]
        with channel.clock.span("pack", channel.features.key):
            packed = channel.route.pack(x) if relu or not channel.clock.again else {}
            if relu:
                packed = {peer: rows.relu_() for peer, rows in packed.items()}
                ctx.save_for_backward(*(rows > 0 for rows in packed.values()))
        ctx.channel, ctx.step, ctx.relu, ctx.mapped = channel, channel.clock.step, relu, mapped
        token = x.new_empty((0, *x.shape[1:]), device=device)
        if not channel.clock.again:
            channel.features.measure(packed, ctx.step, comparable=channel._comparable)
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
                # Converted first: on a CPU a product with booleans takes several times as long.
                returned = {peer: rows * gate.to(rows.dtype) for (peer, rows), gate in gates}
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
