"""Time in a simulation, and things that several users share evenly while they use them."""

import heapq
from collections.abc import Callable
from itertools import count

Done = Callable[[], None]


class Timeline:
    """Calls in the order of their moments; equal moments in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Done]] = []
        self._numbers = count()

    def at(self, moment: float, call: Done) -> None:
        heapq.heappush(self._calls, (moment, next(self._numbers), call))

    def after(self, seconds: float, call: Done) -> None:
        self.at(self.now + seconds, call)

    def run(self) -> None:
        while self._calls:
            self.now, _, call = heapq.heappop(self._calls)
            call()


class Shared:
    """Cores or a link: up to `places` users at full speed, more of them at an even share of it.

    Its own clock runs slower the more users there are. By that clock everyone's work ends when it would alone.
    crowding: how much more work there is in all where users take turns: caches are filled anew at each.
    """

    def __init__(self, timeline: Timeline, places: float, crowding: float = 0.0) -> None:
        self.timeline, self.places, self.crowding = timeline, places, crowding
        self.clock = self._seen = 0.0
        self.busy = 0.0  # seconds of work done, over all places
        self._users: list[tuple[float, int, Done]] = []
        self._numbers = count()
        self._plan = 0  # of the next end; an older one is out of date

    def use(self, seconds: float, done: Done) -> None:
        """Work that takes so many seconds alone."""
        if seconds <= 0:
            self.timeline.after(0.0, done)
            return
        self._advance()
        heapq.heappush(self._users, (self.clock + seconds, next(self._numbers), done))
        self._schedule()

    @property
    def speed(self) -> float:
        share = self.places / max(1, len(self._users))
        return 1.0 if share >= 1 else share / (1 + self.crowding * (1 - share))

    def _advance(self) -> None:
        passed = (self.timeline.now - self._seen) * self.speed
        self.clock += passed
        self.busy += passed * len(self._users)
        self._seen = self.timeline.now

    def _schedule(self) -> None:
        self._plan += 1
        if self._users:
            plan = self._plan
            left = max(0.0, self._users[0][0] - self.clock) / self.speed
            self.timeline.after(left, lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        _, _, done = heapq.heappop(self._users)
        self._schedule()
        done()
