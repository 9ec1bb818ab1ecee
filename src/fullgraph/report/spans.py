"""Spans: pieces of a step's work, which a meter collects and a timeline or a trace shows."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from fullgraph.report.meter import Meter

Mark = Any  # a moment, in the form that its stopwatch uses
Interval = tuple[Mark, Mark]
Row = tuple[str, int]  # a thread's name and its number in the system
Seconds = tuple[float, float]  # from, to

COMPUTE = "compute"  # the row of the computing thread
CODING = ("encode", "decode")
THREADS = "fullgraph-"  # how names of the transport's threads begin
PIECE = re.compile(r"/(chunk|block) ?[0-9]+$")


class Purpose(Protocol):
    """The part of a message's key that a meter reads: channel, step, direction, and use (training rows, weights,
    other).
    """

    @property
    def channel(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def way(self) -> str: ...
    @property
    def use(self) -> str: ...


def channel_of(key: Purpose) -> str:
    """The channel's name; chunks and blocks of a layer count as one channel."""
    return PIECE.sub("", key.channel)


class Span(NamedTuple):
    """A piece of work: its kind, its thread, its interval, and its message or layer."""

    kind: str
    row: Row
    interval: Interval
    key: Purpose | None = None
    about: str = ""
    peers: tuple[int, ...] = ()  # ranks it is sent to or comes from

    @property
    def use(self) -> str:
        return self.key.use if self.key is not None else ""


class Share(NamedTuple):
    """A step's time, in seconds.

    pack, wait and sum are parts of the step; the rest of the step is computing. Other threads do the coding meanwhile.
    """

    step_s: float
    pack_s: float  # picking rows from tensors, and writing rows into them
    wait_s: float  # standing still for rows and sums of peers
    sum_s: float  # gradient all-reduce
    code_s: float  # encoding and decoding, on other threads
    hidden_s: float  # time in which messages travelled while the rank computed


@dataclass
class Traffic:
    """Totals of one direction of a channel."""

    messages: int = 0  # each to one peer
    rows: int = 0
    numbers: int = 0
    bytes: int = 0  # after encoding


class TimedCoding:
    """A coding that reports its work to a meter, and the moment when the last rows of a message have arrived."""

    def __init__(self, meter: Meter, key: Purpose, coding: Any, incoming: Mapping[int, int]) -> None:
        self.meter, self.key, self.coding = meter, key, coding
        self.coming = set(incoming)

    def nbytes(self, peer: int, rows: Tensor) -> int:
        nbytes: int = self.coding.nbytes(peer, rows)
        return nbytes

    def encode(self, peer: int, rows: Tensor) -> Tensor:
        start = self.meter.watch.mark()
        wire: Tensor = self.coding.encode(peer, rows)
        self.meter.encoded(self.key, peer, rows, wire, (start, self.meter.watch.mark()))
        return wire

    def decode(self, peer: int, wire: Tensor) -> Tensor:
        start = self.meter.watch.mark()
        rows: Tensor = self.coding.decode(peer, wire)
        end = self.meter.watch.mark()
        self.meter.add("decode", (start, end), self.key, peers=(peer,))
        self.coming.discard(peer)
        if not self.coming:
            self.meter.arrived(self, end)
        return rows


def row_of_thread() -> Row:
    """The row of this thread; all threads but the transport's share the row of computing, one at a time."""
    name = threading.current_thread().name
    return (name.removeprefix(THREADS), threading.get_ident()) if name.startswith(THREADS) else (COMPUTE, 0)


def without(wholes: Sequence[Seconds], holes: Sequence[Seconds]) -> list[Seconds]:
    """The union of `wholes` minus the union of `holes`, as sorted intervals that do not overlap."""
    edges = sorted([(a, 1, 0) for a, b in wholes if b > a] + [(b, -1, 0) for a, b in wholes if b > a]
                   + [(a, 0, 1) for a, b in holes if b > a] + [(b, 0, -1) for a, b in holes if b > a])  # fmt: skip
    left: list[Seconds] = []
    inside = outside = 0
    for place, (at, whole, hole) in enumerate(edges):
        inside, outside = inside + whole, outside + hole
        after = edges[place + 1][0] if place + 1 < len(edges) else at
        if inside and not outside and after > at:
            joined = left and left[-1][1] == at
            left = [*left[:-1], (left[-1][0], after)] if joined else [*left, (at, after)]
    return left


class Rows:
    """Names of rows; a second thread of the same name gets a number."""

    def __init__(self) -> None:
        self._names: dict[Row, str] = {}

    def name(self, row: Row) -> str:
        if row not in self._names:
            alike = sum(known[0] == row[0] for known in self._names)
            self._names[row] = row[0] if not alike else f"{row[0]} {alike + 1}"
        return self._names[row]
