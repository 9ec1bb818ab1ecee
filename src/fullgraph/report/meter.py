"""Bytes and seconds of one rank; it records and never synchronises."""

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """What one step cost this rank."""

    step_s: float = 0.0
    wait_s: float = 0.0
    halo_bytes: int = 0  # features and their gradients given to the transport
    weight_bytes: int = 0
    spans: dict[str, float] = field(default_factory=dict)


class Meter:
    """Collects a tally a step; a transport reports to `sent` and `waited`, naming the channel."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._start = time.perf_counter()
        self._aside: set[int] = set()  # threads whose waiting holds up no step

    def sent(self, channel: str, nbytes: int) -> None:
        if channel.startswith(("halo/", "tiles/", "hops/")):
            self.tally.halo_bytes += nbytes
        elif channel == "weights":
            self.tally.weight_bytes += nbytes

    def waited(self, channel: str, seconds: float) -> None:
        if threading.get_ident() not in self._aside:
            self.tally.wait_s += seconds

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread waits for meanwhile counts nowhere."""
        self._aside.add(threading.get_ident())
        try:
            yield
        finally:
            self._aside.discard(threading.get_ident())

    def open_step(self) -> None:
        self.tally = Tally()
        self._start = time.perf_counter()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.tally.spans[name] = self.tally.spans.get(name, 0.0) + time.perf_counter() - start

    def close_step(self) -> Tally:
        """The step's tally; what comes after it (evaluation, checkpoints) counts nowhere."""
        tally, self.tally = self.tally, Tally()
        tally.step_s = time.perf_counter() - self._start
        return tally


def peak_memory_bytes() -> int:
    """The most memory this process ever held resident."""
    # getrusage's peak outlives exec on Linux: a rank would report the size of the process that launched it.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
