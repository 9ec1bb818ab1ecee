"""The links of a cluster: messages line up on their connections, and cross the ports of two machines."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial

from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.shared import Done, Shared, Timeline
from fullgraph.transport.sums import cost_of

Line = tuple[int, int, int]  # sender, receiver, lane


class Network:
    """What every machine sends, receives and passes on inside; `cores` are those that help, by machine."""

    def __init__(self, cluster: Cluster, timeline: Timeline, cores: Sequence[Shared]) -> None:
        self.cluster, self.timeline, self.cores = cluster, timeline, cores
        self.out, self.into, self.inside = ([Shared(timeline, 1) for _ in cores] for _ in range(3))
        self.lines: dict[Line, deque[tuple[int, Done]]] = defaultdict(deque)

    @property
    def busy_s(self) -> float:
        """Of the busiest port, in which it carried something."""
        return max(port.busy for ports in (self.out, self.into, self.inside) for port in ports)

    def send(self, line: Line, nbytes: int, came: Done) -> None:
        """Messages of one lane from one rank to another share a connection, and cross one after the other."""
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
        """Bytes over the ports of both machines, which both must carry them; cores on both ends help."""
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
        """A rank's messages, bytes by peer, while all ranks of its machine send as many through the same port."""
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
        """What a sum over all ranks takes on an idle network."""
        cost = cost_of(nbytes, self.cluster.ranks)
        link: Link = self.cluster.link if self.cluster.machines > 1 else self.cluster.inside
        return cost.in_a_row * link.latency_s + 8 * cost.bytes / link.bits_per_s


def _after(times: int, done: Done) -> Done:
    """Calls `done` when it has been called so many times."""
    left = times

    def one_over() -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    return one_over
