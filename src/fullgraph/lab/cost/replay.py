"""Replay recorded steps in simulated time: ranks work, messages cross, and waits become visible.

A rank's own work and the work of its senders and receivers share the cores of a machine. A message enters the sender's
queue and is encoded there. It crosses the ports of both machines after the earlier messages of its connection, and is
decoded in the receiver's queue. transport/process.py does the same.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fullgraph.lab.cost.cluster import Cluster
from fullgraph.lab.cost.network import Done, Network, Shared, Timeline
from fullgraph.lab.cost.script import Post, Step, Sum, Wait, Work
from fullgraph.transport import Key

Price = Callable[[Work], float]  # seconds that a piece of work takes alone


class Piece(NamedTuple):
    """A stretch of a rank's time, for charts."""

    rank: int
    row: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An epoch in the steady state; means over several epochs."""

    epoch_s: float
    compute_s: float  # the busiest rank's own work, as if it ran alone
    wait_s: float  # the longest wait of a rank
    link_s: float  # seconds in which the busiest port carried a message
    bytes: int  # rows and gradients, over all ranks
    pieces: tuple[Piece, ...] = ()


class _Stretch(NamedTuple):
    """Pieces of work, one after another."""

    work: tuple[Work, ...]


class _End(NamedTuple):
    """The end of a step."""


Item = _Stretch | _End | Post | Wait | Sum


class _Arrivals:
    """How much of a message has arrived, and which step waits for all of it."""

    def __init__(self) -> None:
        self.missing: dict[Key, set[int]] = {}
        self.early: dict[Key, set[int]] = defaultdict(set)
        self.calls: dict[Key, Done] = {}

    def expect(self, key: Key, senders: Sequence[int], done: Done) -> None:
        self.missing[key] = set(senders) - self.early.pop(key, set())
        self.calls[key] = done
        self._look(key)

    def came(self, key: Key, sender: int) -> None:
        if key in self.missing:
            self.missing[key].discard(sender)
            self._look(key)
        else:
            self.early[key].add(sender)

    def _look(self, key: Key) -> None:
        if not self.missing[key]:
            del self.missing[key]
            self.calls.pop(key)()


@dataclass(eq=False)
class _Rank:
    """One rank: its program, and its queues by lane."""

    number: int
    events: deque[Item]
    work_s: float = 0.0
    wait_s: float = 0.0
    ready: set[Key] = field(default_factory=set)
    waiting: Key | None = None
    since: float = 0.0
    sending: dict[int, deque[Post]] = field(default_factory=lambda: defaultdict(deque))
    receiving: dict[int, deque[Post]] = field(default_factory=lambda: defaultdict(deque))
    arrivals: _Arrivals = field(default_factory=_Arrivals)
    marks: list[float] = field(default_factory=list)  # when each step ended


class Replay:
    """All ranks of a cluster, with their steps."""

    def __init__(self, cluster: Cluster, price: Price, *, pictured: bool = False, alike: bool = False) -> None:
        """alike: all ranks do the same, so one rank stands for all, and its own message stands for its peers'
        messages.
        """
        self.cluster, self.price, self.pictured, self.alike = cluster, price, pictured, alike
        self.timeline = Timeline()
        machines = range(cluster.machines)
        all_cores = [Shared(self.timeline, cluster.cores, cluster.crowding) for _ in machines]
        self.cores = [all_cores[0]] * len(machines) if cluster.together else all_cores
        self.network = Network(cluster, self.timeline, self.cores)
        self.sums: dict[Key, list[int]] = {}
        self.summing_until = 0.0  # end of the current sum; sums run one after another, because they share the links
        self.pieces: list[Piece] = []
        self.ranks: list[_Rank] = []
        self.last = 0  # the step whose pieces are kept

    def run(self, steps: Sequence[Sequence[Step]], warm_up: int = 2) -> Taken:
        """steps[rank]: the rank's steps in order; steps after `warm_up` are measured."""
        self.last = len(steps[0]) - 1
        self.ranks = [_Rank(rank, deque(_program(of_rank))) for rank, of_rank in enumerate(steps)]
        for rank in self.ranks:
            self.timeline.at(0.0, partial(self._go_on, rank))
        self.timeline.run()
        stuck = [rank.number for rank in self.ranks if rank.events]
        assert not stuck, f"ranks {stuck} wait forever: their scripts do not fit together"
        measured = len(steps[0]) - warm_up
        ends = [max(rank.marks[step] for rank in self.ranks) for step in (warm_up - 1, -1)]
        whole = len(steps[0])
        return Taken(
            epoch_s=(ends[1] - ends[0]) / measured,
            compute_s=max(rank.work_s for rank in self.ranks) / whole,
            wait_s=max(rank.wait_s for rank in self.ranks) / whole,
            link_s=self.network.busy_s / whole,
            bytes=sum(step.bytes for of_rank in steps for step in of_rank[warm_up:]) // measured * self._copies,
            pieces=tuple(self.pieces),
        )

    @property
    def _copies(self) -> int:
        """How many ranks each simulated rank stands for."""
        return self.cluster.ranks if self.alike else 1

    def _go_on(self, rank: _Rank) -> None:
        """Run a rank's next events, up to one that takes time."""
        while rank.events:
            event = rank.events.popleft()
            if isinstance(event, _End):
                rank.marks.append(self.timeline.now)
            elif isinstance(event, _Stretch):
                seconds = sum(map(self.price, event.work))
                rank.work_s += seconds
                self._timed(rank.number, "step", "work", seconds, partial(self._go_on, rank))
                return
            elif isinstance(event, Post):
                self._post(rank, event)
            elif isinstance(event, Sum):
                self._sum(rank, event)
            elif event.on.key not in rank.ready:
                rank.waiting, rank.since = event.on.key, self.timeline.now
                return

    def _timed(self, rank: int, row: str, kind: str, seconds: float, done: Done) -> None:
        """Work that takes time on a rank's machine."""
        began = self.timeline.now

        def over() -> None:
            self._picture(rank, row, kind, began)
            done()

        self.cores[self.cluster.machine(rank)].use(seconds, over)

    def _picture(self, rank: int, row: str, kind: str, began: float) -> None:
        if self.pictured and self.timeline.now > began and len(self.ranks[rank].marks) >= self.last:
            self.pieces.append(Piece(rank, row, kind, began, self.timeline.now))

    # A message.

    def _post(self, rank: _Rank, post: Post) -> None:
        queue, coming = rank.sending[post.lane], rank.receiving[post.lane]
        queue.append(post)
        coming.append(post)
        if len(queue) == 1:
            self._encode(rank, post.lane)
        if len(coming) == 1:
            self._expect(rank, post.lane)

    def _encode(self, rank: _Rank, lane: int) -> None:
        post = rank.sending[lane][0]
        self._timed(rank.number, f"send {lane}", "encode", sum(map(self.price, post.encode)),
                    lambda: self._encoded(rank, lane))  # fmt: skip

    def _encoded(self, rank: _Rank, lane: int) -> None:
        post = rank.sending[lane].popleft()
        if self.alike:
            self.network.send_as_all_do(rank.number, post.sent, partial(self._all_came, rank, post))
        else:
            for peer, nbytes in post.sent.items():
                self.network.send((rank.number, peer, lane), nbytes, partial(self._came, post.key, rank.number, peer))
        if rank.sending[lane]:
            self._encode(rank, lane)

    def _all_came(self, rank: _Rank, post: Post) -> None:
        """With one representative rank, its own message stands for its peers' messages."""
        for peer in post.come:
            rank.arrivals.came(post.key, peer)
        for peer in post.sent:
            rank.arrivals.came(post.key, _gone_to(peer))

    def _came(self, key: Key, sender: int, receiver: int) -> None:
        self.ranks[receiver].arrivals.came(key, sender)
        self.ranks[sender].arrivals.came(key, _gone_to(receiver))

    def _expect(self, rank: _Rank, lane: int) -> None:
        post = rank.receiving[lane][0]
        # The receiver's thread also waits until its sends have left, because their buffers are kept until then.
        awaited = [*post.come, *map(_gone_to, post.sent)]
        rank.arrivals.expect(post.key, awaited, lambda: self._decode(rank, lane))

    def _decode(self, rank: _Rank, lane: int) -> None:
        post = rank.receiving[lane][0]
        self._timed(rank.number, f"receive {lane}", "decode", sum(map(self.price, post.decode)),
                    lambda: self._decoded(rank, lane))  # fmt: skip

    def _decoded(self, rank: _Rank, lane: int) -> None:
        self._is_there(rank, rank.receiving[lane].popleft().key, "wait")
        if rank.receiving[lane]:
            self._expect(rank, lane)

    def _is_there(self, rank: _Rank, key: Key, kind: str) -> None:
        """A rank has received something that it may be waiting for."""
        rank.ready.add(key)
        if rank.waiting == key:
            rank.waiting = None
            rank.wait_s += self.timeline.now - rank.since
            self._picture(rank.number, "step", kind, rank.since)
            self._go_on(rank)

    # A sum over all ranks.

    def _sum(self, rank: _Rank, event: Sum) -> None:
        here = self.sums.setdefault(event.key, [])
        here.append(rank.number)
        if len(here) == len(self.ranks):  # with a representative, only one rank
            self.summing_until = max(self.timeline.now, self.summing_until) + self.network.sum_s(event.bytes)
            self.timeline.at(self.summing_until, lambda: self._summed(event))

    def _summed(self, event: Sum) -> None:
        for number in self.sums.pop(event.key):
            self._is_there(self.ranks[number], event.key, "sum")


def _gone_to(peer: int) -> int:
    """The name under which a rank waits until its own message to a peer has left."""
    return -1 - peer


def _program(steps: Sequence[Step]) -> list[Item]:
    events: list[Item] = []
    for step in steps:
        together: list[Work] = []
        for event in (*step.events, _End()):
            if isinstance(event, Work):
                together.append(event)
                continue
            if together:
                events.append(_Stretch(tuple(together)))
                together = []
            events.append(event)
    return events
