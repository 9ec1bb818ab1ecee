"""A short look at the links between ranks: how long a small message takes, how fast a large one is, what it costs."""

import time

import torch

from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.transport import Key, Transport

SMALL, LARGE = 64, 16 << 20
PINGS, CROSSINGS = 50, 6


def probed(transport: Transport, ranks_per_machine: int, cores: int, memory_bytes: int) -> Cluster:
    """The cluster that these ranks are on; all of them call it, and all get the same."""
    machines = -(-transport.size // ranks_per_machine)
    inside = _link(transport, 1, "inside") if ranks_per_machine > 1 else Link()
    link = _link(transport, ranks_per_machine, "between") if machines > 1 else Link()
    return Cluster(
        machines=machines, ranks_per_machine=ranks_per_machine, cores=cores,
        memory_bytes=memory_bytes // ranks_per_machine, link=link, inside=inside,
    )  # fmt: skip


def _link(transport: Transport, other: int, name: str) -> Link:
    """Between rank 0 and another; the rest look on, and hear what was found."""
    there = {0: other, other: 0}.get(transport.rank)
    figures = torch.zeros(3, dtype=torch.float64)
    if there is not None:
        ping = _exchange(transport, there, SMALL, PINGS, f"{name} small")[0]
        taken, busy = _exchange(transport, there, LARGE, CROSSINGS, f"{name} large")
        if transport.rank == 0:
            figures = torch.tensor([ping, taken, busy], dtype=torch.float64)
    ping, taken, busy = transport.all_reduce(Key(f"probe/{name}", 0), figures).wait().tolist()
    rate = 8 * LARGE / max(1e-9, taken - ping)
    return Link(
        bits_per_s=min(1e16, max(1e3, rate)), latency_s=max(0.0, ping), message_s=0.0, core_s_per_byte=busy / LARGE / 2
    )


def _exchange(transport: Transport, peer: int, nbytes: int, times: int, name: str) -> tuple[float, float]:
    """Seconds, and seconds of a core, in which both send so much; the best of all times."""
    rows = torch.zeros(nbytes, dtype=torch.uint8)
    best = busiest = float("inf")
    for turn in range(times):
        start, busy = time.perf_counter(), time.process_time()
        transport.begin(Key(f"probe/{name}", turn), {peer: rows}, {peer: nbytes}).wait()
        best, busiest = min(best, time.perf_counter() - start), min(busiest, time.process_time() - busy)
    return best, busiest
