"""profile.json: the time of a run's epochs on every rank, the traffic, the partition and the memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add
from pathlib import Path
from typing import Annotated

from fullgraph.graph_types import TypeShare
from fullgraph.report.memory import MemoryPlan
from fullgraph.report.spans import Share
from fullgraph.storage import read_record, write_document
from fullgraph.values import Range, Value, tree_of

FILE = "profile.json"
SCHEMA = 1
MOST_BINS = 48
LAG = 1.25  # a rank lags if its work is at least this multiple of the mean: on the terminal and on the page
FIX = "remove it; the report then leaves that section out"

Count = Annotated[int, Range(0, 2**62)]
Time = Annotated[float, Range(0, 1e12)]


@dataclass(frozen=True, kw_only=True)
class Bin(Value):
    """Sums over consecutive epochs of one rank."""

    epochs: Annotated[int, Range(1, 2**53)] = 1
    step_s: Time = 0.0
    pack_s: Time = 0.0
    wait_s: Time = 0.0
    sum_s: Time = 0.0
    code_s: Time = 0.0
    hidden_s: Time = 0.0
    numbers: Count = 0  # numbers in rows given to codecs
    bytes: Count = 0  # bytes after encoding
    lag: Count = 0  # sum over the epochs of the age of each epoch's oldest rows

    @property
    def compute_s(self) -> float:
        return max(0.0, self.step_s - self.pack_s - self.wait_s - self.sum_s)

    def __add__(self, other: Bin) -> Bin:
        mine, others = tree_of(self), tree_of(other)
        return Bin(**{name: round(mine[name] + others[name], 7) for name in mine})


class Bins:
    """The epochs of a run in at most `MOST_BINS` bins of equal width; when all are used, pairs of bins are merged."""

    def __init__(self, before: tuple[Bin, ...] = ()) -> None:
        # plain lists of numbers, because this runs in every epoch
        self._rows = [list(tree_of(bin).values()) for bin in before]
        self._width = max((bin.epochs for bin in before), default=1)

    def add(self, share: Share, numbers: int, nbytes: int, lag: int) -> None:
        one = [1, *share, numbers, nbytes, max(0, lag)]
        if self._rows and self._rows[-1][0] < self._width:
            self._rows[-1] = list(map(add, self._rows[-1], one))
            return
        if len(self._rows) == MOST_BINS:
            self._width *= 2
            self._rows = [list(map(add, a, b)) for a, b in zip(self._rows[::2], self._rows[1::2], strict=True)]
        self._rows.append(one)

    @property
    def bins(self) -> tuple[Bin, ...]:
        names = [field.name for field in fields(Bin)]
        whole = ("epochs", "numbers", "bytes", "lag")
        rows = (dict(zip(names, row, strict=True)) for row in self._rows)
        return tuple(
            Bin(**{name: value if name in whole else max(0.0, round(value, 7)) for name, value in row.items()})
            for row in rows
        )


@dataclass(frozen=True, kw_only=True)
class Flow(Value):
    """One direction of a channel on one rank: what it sent, and what the strategy expects it to receive."""

    channel: str
    way: str
    messages: Count
    rows: Count
    numbers: Count
    bytes: Count  # sent, as encoded
    expected: Count  # bytes that peers send by route, schedule and codec; summed over ranks, equal to `bytes`


@dataclass(frozen=True, kw_only=True)
class Piece(Value):
    """A piece of the typical epoch: its ends in seconds since the first rank began the epoch."""

    kind: str
    row: str
    start: float
    end: float
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class PlannedLayer(Value):
    """The rows that a layer sent (none, input or mapped ones), and the input that was known before training."""

    layer: int
    sends: str
    known: str = ""  # aggregate, or halo (the halo's input rows)
    columns: Count = 0  # columns per sent row
    rows: Count = 0  # rows that it computes, summed over ranks
    parts: Count = 1  # in so many parts, one after the other


@dataclass(frozen=True, kw_only=True)
class RankProfile(Value):
    """The profile of one rank."""

    host: str
    device: str
    threads: Count
    cores: Count = 0  # cores that its machine lets it use; 0: unknown
    peak_memory_bytes: Count
    memory_bytes: Count  # memory of its machine; 0: unknown
    peak_device_bytes: Count = 0
    device_bytes: Count = 0
    nodes: Count
    arcs: Count
    train: Count
    halo: tuple[Count, ...]  # halo rows, by the rank that owns them
    bins: tuple[Bin, ...]
    traffic: tuple[Flow, ...]
    typical: tuple[Piece, ...] = ()
    memory: tuple[MemoryPlan, ...] = ()  # one, of a run with --host-memory, or that was too large for the memory


@dataclass(frozen=True, kw_only=True)
class Profile(Value):
    """The profiles of all ranks; epochs count from 1, and epochs before `first_epoch` were not measured."""

    schema: Annotated[int, Range(SCHEMA, SCHEMA)] = SCHEMA
    first_epoch: Annotated[int, Range(1, 2**53)]
    typical_epoch: Count = 0  # 0: none was recorded
    metric: str = "score"
    versions: dict[str, str]
    ranks: tuple[RankProfile, ...]
    plan: tuple[PlannedLayer, ...] = ()
    types: tuple[TypeShare, ...] = ()  # of a typed graph

    @property
    def total(self) -> Bin:
        """The sum over all ranks and epochs."""
        whole = [bin for rank in self.ranks for bin in rank.bins]
        return sum(whole[1:], whole[0]) if whole else Bin()

    def write(self, folder: Path) -> None:
        write_document(folder / FILE, tree_of(self))


def read_profile(folder: Path) -> Profile | None:
    """The profile of a run; None if it has none."""
    path = folder / FILE
    return read_record(Profile, path, fix=FIX) if path.exists() else None
