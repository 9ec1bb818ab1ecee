"""A channel by host: its rows take three routes one after another, and only one of them leaves the host."""

from collections.abc import Callable

import torch
from torch import Tensor

from fullgraph.exchange.channel import Channel
from fullgraph.exchange.inbox import Held
from fullgraph.plan import Route
from fullgraph.plan.by_host import HostRoutes, Taken


class HostChannel:
    """Moves rows as a `Channel` does. `across` has the layer's wire; the others send fresh rows in full precision.

    Sums are added inside the host in `begin`, and rows are handed on in `end`; other work hides what crosses.
    """

    def __init__(self, routes: HostRoutes, across: Channel, build: Callable[[str, Route], Channel]) -> None:
        """across: the channel between hosts. build: makes a channel of fresh rows, by the end of its name."""
        self.routes, self.across = routes, across
        self.adds = None if routes.adds is None else build("adds", routes.adds)
        self.hands = None if routes.handed is None else build("hands", routes.handed)
        partial = self.hands is not None and across.features.extras.partial
        self.tells = build("absent", routes.handed) if partial and routes.handed is not None else None

    def begin(
        self, x: Tensor, *, relu: bool = False, mapped: bool = False, device: torch.device | None = None
    ) -> tuple[Tensor, Tensor]:
        x, rows = Taken.apply(x, self.routes.own, mapped)  # type: ignore[no-untyped-call]
        rows = rows.relu() if relu else rows
        if self.adds is not None:
            terms, rows = rows.split(self.routes.counts)
            rows = rows.index_add(0, self.routes.places, _through(self.adds, terms)[1])
        _, token = self.across.begin(rows, mapped=True)
        return x, token

    def end(self, token: Tensor) -> Tensor:
        halo = self.across.end(token)
        return halo if self.hands is None else torch.cat(_through(self.hands, halo))

    def absent(self, count: int) -> Tensor | None:
        """Mask over the `count` rows from `end`, as `Channel.absent`."""
        if self.tells is None:
            return self.across.absent(count)
        (first,) = self.routes.across.out_shape(())
        came = self.across.absent(first)
        with torch.no_grad():
            mask = torch.zeros(first, 1) if came is None else came[:, None].float()
            return torch.cat(_through(self.tells, mask))[:, 0].bool()

    def held(self) -> Held:
        return self.across.held()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.across.load_state(state)


def _through(channel: Channel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows themselves, and those that come."""
    rows, token = channel.begin(rows)
    return rows, channel.end(token)
