"""The exact end of a run: from a step on, rows are fresh and in full precision."""

from torch import Tensor

from fullgraph.codec.memory import ByPeer
from fullgraph.exchange.inbox import Held, Inbox, Later


class Ending:
    """One direction of a channel: an inbox until a step, and from that step on an exact one.

    The exact one reads its own step's rows, so it holds nothing between steps. After the change, nothing of the first
    one is read any more.
    """

    def __init__(self, first: Inbox, exact: Inbox, start: int) -> None:
        self.first, self.exact, self.start = first, exact, start
        self.key, self.route, self.extras = exact.key, exact.route, first.extras
        self._now = first

    def _at(self, step: int) -> Inbox:
        if step >= self.start and self._now is self.first:
            self.first.drop_before(step)
            self._now = self.exact
        return self._now

    @property
    def absent(self) -> ByPeer:
        return self._now.absent

    def measure(self, packed: ByPeer, step: int, *, comparable: bool) -> None:
        self._at(step).measure(packed, step, comparable=comparable)

    def post(self, packed: ByPeer, like: Tensor, step: int, later: Later | None = None) -> None:
        self._at(step).post(packed, like, step, later)

    def read(self, step: int) -> ByPeer | None:
        return self._at(step).read(step)

    def fresher(self, step: int) -> ByPeer | None:
        return self._at(step).fresher(step)

    def drop_before(self, step: int) -> None:
        self._at(step).drop_before(step)

    def expected_bytes(self, step: int) -> int:
        return (self.first if step < self.start else self.exact).expected_bytes(step)

    def held(self) -> Held:
        return self._now.held()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._now.load_state(state)
