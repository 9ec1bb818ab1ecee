"""Bytes and seconds of one rank. It records marks and never waits for them; seconds are computed when they are read."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fullgraph.display import SILENT, Display, Told

if TYPE_CHECKING:  # torch is imported where a device is asked for
    import torch

Mark = Any  # a moment, as its stopwatch knows it
Interval = tuple[Mark, Mark]


class Stopwatch(Protocol):
    """Marks moments of whoever computes."""

    def mark(self) -> Mark: ...
    def seconds(self, interval: Interval) -> float: ...


class HostWatch:
    """For work that is done when its call returns."""

    def mark(self) -> Mark:
        return time.perf_counter()

    def seconds(self, interval: Interval) -> float:
        return float(interval[1] - interval[0])


class DeviceWatch:
    """For a GPU, which computes long after the call: events on its stream, read only when they have passed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Mark:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, interval: Interval) -> float:
        start, end = interval
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def stopwatch_of(device: torch.device | None) -> Stopwatch:
    return DeviceWatch(device) if device is not None and device.type == "cuda" else HostWatch()


@dataclass
class Tally:
    """What one step cost this rank."""

    watch: Stopwatch
    step: Interval | None = None
    waits: list[Interval] = field(default_factory=list)
    spans: dict[str, list[Interval]] = field(default_factory=dict)
    halo_bytes: int = 0  # features and their gradients given to the transport
    weight_bytes: int = 0

    @property
    def step_s(self) -> float:
        return self.watch.seconds(self.step) if self.step else 0.0

    @property
    def wait_s(self) -> float:
        """How long whoever computes stood still for messages."""
        return sum(map(self.watch.seconds, self.waits))


class Purpose(Protocol):
    """A message's key, of which the meter reads one thing: whether it carries rows of training, or weights."""

    @property
    def use(self) -> str: ...


class Meter:
    """Collects a tally a step; a transport reports to `sent` and `waiting`, with the key of the message."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.watch = stopwatch_of(device)
        self.tally = Tally(self.watch)
        self._start = self.watch.mark()
        self._aside: set[int] = set()  # threads whose waiting holds up no step

    def sent(self, key: Purpose, nbytes: int) -> None:
        if key.use == "rows":
            self.tally.halo_bytes += nbytes
        elif key.use == "weights":
            self.tally.weight_bytes += nbytes

    @contextmanager
    def waiting(self, key: Purpose) -> Iterator[None]:
        """Around the wait for a message."""
        if threading.get_ident() in self._aside:
            yield
            return
        start = self.watch.mark()
        yield
        self.tally.waits.append((start, self.watch.mark()))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread waits for meanwhile counts nowhere."""
        self._aside.add(threading.get_ident())
        try:
            yield
        finally:
            self._aside.discard(threading.get_ident())

    def open_step(self) -> None:
        self.tally = Tally(self.watch)
        self._start = self.watch.mark()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = self.watch.mark()
        yield
        self.tally.spans.setdefault(name, []).append((start, self.watch.mark()))

    def close_step(self) -> Tally:
        """The step's tally; what comes after it (evaluation, checkpoints) counts nowhere."""
        tally, self.tally = self.tally, Tally(self.watch)
        tally.step = (self._start, self.watch.mark())
        return tally


class Phases:
    """Seconds of a run's start, by phase: imports, reading the graph, cutting it, starting ranks, placing, first epoch.

    display: where a phase is shown while it lasts.
    """

    def __init__(self, seconds: dict[str, float] | None = None, display: Display = SILENT) -> None:
        self.seconds = dict(seconds or {})
        self.display = display

    @contextmanager
    def __call__(self, name: str, text: str = "", *, at_once: bool = False) -> Iterator[Told]:
        """Count what follows as `name`, and show it as `text`. What this gives is called with (done, total)."""
        start = time.perf_counter()
        with self.display.phase(text, at_once=at_once) as told:
            yield told
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def __str__(self) -> str:
        told = ", ".join(f"{name.replace('_', ' ')} {value:.1f}" for name, value in self.seconds.items())
        return f"started in {sum(self.seconds.values()):.1f} s: {told}"


def age() -> float:
    """Seconds since this process began."""
    try:
        began = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, AttributeError):  # no Linux
        return time.process_time()


def peak_device_bytes(device: torch.device) -> int:
    """The most memory that tensors ever held on a GPU; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    import torch

    return torch.cuda.max_memory_allocated(device)


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
