"""Simulated time, resources that several users share evenly, and the links of a cluster.

Messages queue on their connections, and pass the ports of both machines.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.transport.sums import cost_of

Done = Callable[[], None]


class Timeline:
    """Calls in the order of their times; at equal times, in the order of their requests."""

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
    """Cores or a link: up to `places` users run at full speed, more users share it evenly.

    Its own clock runs slower with more users. On that clock, each user's work ends when it would end alone.
    crowding: how much the total work grows if users take turns, because each turn fills caches again.
    """

    def __init__(self, timeline: Timeline, places: float, crowding: float = 0.0) -> None:
        self.timeline, self.places, self.crowding = timeline, places, crowding
        self.clock = self._seen = 0.0
        self.busy = 0.0  # seconds of work done, over all places
        self._users: list[tuple[float, int, Done]] = []
        self._numbers = count()
        self._plan = 0  # number of the planned next end; a plan with an older number is obsolete

    def use(self, seconds: float, done: Done) -> None:
        """Add work that takes `seconds` alone."""
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


Line = tuple[int, int, int]  # sender, receiver, lane


class Network:
    """The bytes that every machine sends, receives and passes on inside; `cores` are the cores of each machine."""

    def __init__(self, cluster: Cluster, timeline: Timeline, cores: Sequence[Shared]) -> None:
        self.cluster, self.timeline, self.cores = cluster, timeline, cores
        self.out, self.into, self.inside = ([Shared(timeline, 1) for _ in cores] for _ in range(3))
        self.lines: dict[Line, deque[tuple[int, Done]]] = defaultdict(deque)

    @property
    def busy_s(self) -> float:
        """Seconds in which the busiest port carried a message."""
        return max(port.busy for ports in (self.out, self.into, self.inside) for port in ports)

    def send(self, line: Line, nbytes: int, came: Done) -> None:
        """Send a message. Messages of one lane between two ranks share a connection, and cross one after another."""
        self.lines[line].append((nbytes, came))
        if len(self.lines[line]) == 1:
            self._next_of(line)

    def _next_of(self, line: Line) -> None:
        nbytes, came = self.lines[line][0]
        latency = self._link(line[0], line[1]).latency_s

        def over() -> None:
            self.timeline.after(latency, came)
            self.lines[line].popleft()
            if self.lines[line]:
                self._next_of(line)

        self._cross(line[0], line[1], nbytes, over)

    def _link(self, sender: int, receiver: int) -> Link:
        here, there = self.cluster.machine(sender), self.cluster.machine(receiver)
        return self.cluster.inside if here == there else self.cluster.link

    def _cross(self, sender: int, receiver: int, nbytes: int, done: Done) -> None:
        """Send bytes through the ports of both machines, which both must carry them; cores on both ends work, too."""
        here, there = self.cluster.machine(sender), self.cluster.machine(receiver)
        link = self._link(sender, receiver)
        seconds, on_core = 8 * nbytes / link.bits_per_s, nbytes * link.core_s_per_byte + link.message_s
        ports = [self.inside[here]] if here == there else [self.out[here], self.into[there]]
        one_over = _after(len(ports) + 2, done)
        for port in ports:
            port.use(seconds, one_over)
        for machine in (here, there):
            self.cores[machine].use(on_core, one_over)

    def send_as_all_do(self, sender: int, sent: Mapping[int, int], came: Done) -> None:
        """Send a rank's messages, bytes by peer, while all ranks of its machine send equally many through the same
        port.
        """
        cluster, here = self.cluster, self.cluster.machine(sender)
        sums = {True: [0, 0], False: [0, 0]}
        for peer, nbytes in sent.items():
            of = sums[cluster.machine(peer) == here]
            of[0], of[1] = of[0] + nbytes, of[1] + 1
        ways = [(self.inside, cluster.inside, sums[True]), (self.out, cluster.link, sums[False])]
        one_over = _after(len(ways), came)
        for ports, link, (nbytes, messages) in ways:
            latency = link.latency_s + messages * link.message_s if messages else 0.0
            seconds = 8 * nbytes * cluster.ranks_per_machine / link.bits_per_s
            ports[here].use(seconds, partial(self.timeline.after, latency, one_over))

    def sum_s(self, nbytes: int) -> float:
        """Seconds of a sum over all ranks on an idle network."""
        cost = cost_of(nbytes, self.cluster.ranks)
        link: Link = self.cluster.link if self.cluster.machines > 1 else self.cluster.inside
        return cost.in_a_row * link.latency_s + 8 * cost.bytes / link.bits_per_s


def _after(times: int, done: Done) -> Done:
    """A function that calls `done` at its last call of `times`."""
    left = times

    def one_over() -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    return one_over
