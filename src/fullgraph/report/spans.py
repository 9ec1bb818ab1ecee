"""Pieces of a step's work: what a meter collects, and a timeline or a trace shows."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from fullgraph.report.meter import Meter

Mark = Any  # a moment, as its stopwatch knows it
Interval = tuple[Mark, Mark]
Row = tuple[str, int]  # the name of a thread, and its number in the system
Seconds = tuple[float, float]  # from, to

COMPUTE = "compute"  # the row of whoever computes
CODING = ("encode", "decode")
THREADS = "fullgraph-"  # what the names of the transport's threads begin with
PIECE = re.compile(r"/(chunk|block) ?[0-9]+$")


class Purpose(Protocol):
    """A message's key: its channel, its step, its way, and whether it carries rows of training, or weights."""

    @property
    def channel(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def way(self) -> str: ...
    @property
    def use(self) -> str: ...


def channel_of(key: Purpose) -> str:
    """The channel's name; the chunks of a layer, or its blocks, count as one."""
    return PIECE.sub("", key.channel)


class Span(NamedTuple):
    """A piece of work: its kind, who did it, from when to when, and of which message or layer."""

    kind: str
    row: Row
    interval: Interval
    key: Purpose | None = None
    about: str = ""
    peers: tuple[int, ...] = ()  # whom it goes to, or comes from

    @property
    def use(self) -> str:
        return self.key.use if self.key is not None else ""


class Share(NamedTuple):
    """Where a step went, in seconds.

    pack, wait and sum are pieces of the step; the rest of it is compute. Coding is done by other threads meanwhile.
    """

    step_s: float
    pack_s: float  # rows picked from tensors, and put into them
    wait_s: float  # standing still for rows (and sums) of peers
    sum_s: float  # of the weights' gradients over ranks
    code_s: float  # rows made bytes, and bytes rows, beside the step
    hidden_s: float  # messages were on their way while the rank worked


@dataclass
class Traffic:
    """What one way of a channel has carried."""

    messages: int = 0  # to one peer each
    rows: int = 0
    numbers: int = 0
    bytes: int = 0  # as encoded


class TimedCoding:
    """A coding whose work is told to a meter, and when the last of a message's rows are here."""

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
    """The row of this thread: all that are not the transport's compute, one at a time."""
    name = threading.current_thread().name
    return (name.removeprefix(THREADS), threading.get_ident()) if name.startswith(THREADS) else (COMPUTE, 0)


def without(wholes: Sequence[Seconds], holes: Sequence[Seconds]) -> list[Seconds]:
    """The union of some intervals, less that of others; in order, and no two overlap."""
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
    """Names of rows: a second thread of the same name gets a number."""

    def __init__(self) -> None:
        self._names: dict[Row, str] = {}

    def name(self, row: Row) -> str:
        if row not in self._names:
            alike = sum(known[0] == row[0] for known in self._names)
            self._names[row] = row[0] if not alike else f"{row[0]} {alike + 1}"
        return self._names[row]
