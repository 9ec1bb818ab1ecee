"""Measure bytes and seconds of one rank. It records marks and never waits; seconds are computed when they are read."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fullgraph.device import is_accelerator, marked
from fullgraph.display import SILENT, Display, OnProgress
from fullgraph.report.spans import (
    CODING,
    COMPUTE,
    Interval,
    Mark,
    Purpose,
    Share,
    Span,
    TimedCoding,
    Traffic,
    channel_of,
    row_of_thread,
    without,
)

if TYPE_CHECKING:  # torch is imported only when a device is asked for
    import torch
    from torch import Tensor


class Stopwatch(Protocol):
    """Marks moments of the computation."""

    def mark(self) -> Mark: ...
    def seconds(self, interval: Interval) -> float: ...


class HostWatch:
    """A stopwatch for work that is done when its call returns."""

    def mark(self) -> Mark:
        return time.perf_counter()

    def seconds(self, interval: Interval) -> float:
        # Cores of a virtual machine may disagree on the time by milliseconds, so a short interval may come out
        # negative.
        return max(0.0, float(interval[1] - interval[0]))


class DeviceWatch:
    """A stopwatch for a GPU, which computes long after the call: events on its stream, read only after they have
    passed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Mark:
        return marked(self.device, timing=True)

    def seconds(self, interval: Interval) -> float:
        start, end = interval
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def stopwatch_of(device: torch.device | None) -> Stopwatch:
    return DeviceWatch(device) if device is not None and is_accelerator(device) else HostWatch()


@dataclass
class Tally:
    """The cost of one step on this rank."""

    watch: Stopwatch
    number: int = -1  # the step's number
    began: float = 0.0  # start of the step, on the host's clock
    step: Interval | None = None
    waits: list[Interval] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    flights: list[Interval] = field(default_factory=list)  # from posting a message until its rows have arrived
    halo_bytes: int = 0  # bytes of features and gradients given to the transport
    weight_bytes: float = 0.0  # this rank's share of the bytes of gradient all-reduces
    numbers: int = 0  # numbers in those rows before encoding
    lag: int = 0  # age of the oldest rows that were read, in steps

    @property
    def step_s(self) -> float:
        return self.watch.seconds(self.step) if self.step else 0.0

    @property
    def wait_s(self) -> float:
        """Seconds in which the computation stood still for messages."""
        return sum(map(self.watch.seconds, self.waits))

    def waited_for(self, use: str) -> float:
        """The part of `wait_s` for messages of this use."""
        return sum(self.watch.seconds(span.interval) for span in self.spans if span.kind == "wait" and span.use == use)

    def when(self, interval: Interval) -> tuple[float, float]:
        """Start and end of an interval in seconds since the step began."""
        assert self.step is not None, "the step is not over"
        self.watch.seconds(interval)  # on a GPU: waits until both marks have passed
        zero = self.step[0]
        return self.watch.seconds((zero, interval[0])), self.watch.seconds((zero, interval[1]))

    def share(self) -> Share:
        """How the step's time divides into computing, packing, waiting, sums and coding."""
        seconds = dict.fromkeys(("pack", "unpack", "wait", "sum", "encode", "decode"), 0.0)
        for span in self.spans:
            if span.kind in seconds and not (span.kind == "wait" and span.use == "weights"):
                beside = span.row[0] != COMPUTE
                seconds[span.kind] += self.watch.seconds(span.interval) * (beside or span.kind not in CODING)
        waits = [self.when(wait) for wait in self.waits]
        hidden = sum(b - a for a, b in without([self.when(flight) for flight in self.flights], waits))
        return Share(
            step_s=self.step_s,
            pack_s=seconds["pack"] + seconds["unpack"],
            wait_s=seconds["wait"],
            sum_s=seconds["sum"],
            code_s=seconds["encode"] + seconds["decode"],
            hidden_s=hidden,
        )


class Meter:
    """Collects one tally per step. The transport reports every message: its bytes, coding and waits.

    detail: record every piece of a step's work; else only bytes and waits.
    """

    def __init__(self, device: torch.device | None = None, *, detail: bool = True) -> None:
        self.watch, self.detail = stopwatch_of(device), detail
        self.tally = Tally(self.watch)
        self.last = self.tally  # the tally of the last finished step
        self.other_bytes = 0.0  # all other bytes given to the transport, in a step or between steps
        self.traffic: dict[tuple[str, str], Traffic] = {}  # by channel and direction, since the meter was built
        self._start = self.watch.mark()
        self._aside: set[int] = set()  # threads whose waits do not delay a step
        self._flying: dict[TimedCoding, Mark] = {}
        self._lock = threading.Lock()

    def sent(self, key: Purpose, nbytes: float) -> None:
        if key.use == "rows":
            self.tally.halo_bytes += int(nbytes)
        elif key.use == "weights":
            self.tally.weight_bytes += nbytes
        else:
            self.other_bytes += nbytes

    def message(self, key: Purpose, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], coding: Any) -> Any:
        """Return the coding of a posted message with timers around it; only messages of training rows are timed."""
        if key.use != "rows":
            return coding
        self.tally.numbers += sum(rows.numel() for rows in outgoing.values())
        timed = TimedCoding(self, key, coding, incoming)
        if incoming:
            with self._lock:
                self._flying[timed] = self.watch.mark()
        return timed

    def encoded(self, key: Purpose, peer: int, rows: Tensor, wire: Tensor, interval: Interval) -> None:
        self.add("encode", interval, key, peers=(peer,))
        with self._lock:
            flow = self.traffic.setdefault((channel_of(key), key.way), Traffic())
            flow.messages, flow.rows = flow.messages + 1, flow.rows + len(rows)
            flow.numbers, flow.bytes = flow.numbers + rows.numel(), flow.bytes + wire.nbytes

    def arrived(self, message: TimedCoding, mark: Mark) -> None:
        with self._lock:
            start = self._flying.pop(message, None)
            if start is not None:
                self.tally.flights.append((start, mark))

    def add(
        self, kind: str, interval: Interval, key: Purpose | None = None, about: str = "", peers: tuple[int, ...] = ()
    ) -> None:
        self.tally.spans.append(Span(kind, row_of_thread(), interval, key, about, peers))

    @contextmanager
    def waiting(self, key: Purpose) -> Iterator[None]:
        """Time the wait for a message."""
        if threading.get_ident() in self._aside:
            yield
            return
        start = self.watch.mark()
        yield
        interval = (start, self.watch.mark())
        self.tally.waits.append(interval)
        self.add("wait", interval, key)
        if key.use == "rows":
            self.tally.lag = max(self.tally.lag, self.tally.number - key.step)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not count this thread's waits while the block runs."""
        self._aside.add(threading.get_ident())
        try:
            yield
        finally:
            self._aside.discard(threading.get_ident())

    @contextmanager
    def span(self, kind: str, key: Purpose | None = None, peers: tuple[int, ...] = ()) -> Iterator[None]:
        """Time a piece of the step's work."""
        start = self.watch.mark()
        yield
        self.add(kind, (start, self.watch.mark()), key, peers=peers)

    def open_step(self, number: int = -1) -> None:
        """Begin a step; coding that other threads did since the previous step belongs to this step."""
        with self._lock:
            late = [span for span in self.tally.spans if span.use == "rows" and span.row[0] != COMPUTE]
            self._start = self.watch.mark()
            self.tally = Tally(self.watch, number, time.perf_counter(), spans=late)
            self._flying = dict.fromkeys(self._flying, self._start)

    def close_step(self) -> Tally:
        """End the step and return its tally; later work (evaluation, checkpoints) is not counted."""
        with self._lock:
            end = self.watch.mark()
            tally, self.tally = self.tally, Tally(self.watch)
            tally.step = (self._start, end)
            tally.flights += [(start, end) for start in self._flying.values()]
        self.last = tally
        return tally


class Phases:
    """Seconds of a run's start, by phase: imports, reading the graph, partitioning, starting ranks, placing, first
    epoch.

    display: shows a phase while it lasts.
    """

    def __init__(self, seconds: dict[str, float] | None = None, display: Display = SILENT) -> None:
        self.seconds = dict(seconds or {})
        self.display = display

    @contextmanager
    def __call__(self, name: str, text: str = "", *, at_once: bool = False) -> Iterator[OnProgress]:
        """Time the block as `name` and show it as `text`. The yielded function takes (done, total)."""
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


def peak_memory_bytes() -> int:
    """The largest resident memory that this process ever had."""
    # On Linux, getrusage's peak survives exec: a rank would report the size of the process that launched it.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
