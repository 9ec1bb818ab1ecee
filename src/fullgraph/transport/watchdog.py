"""The watchdog: no rank waits forever, and no rank gives up a peer that is only slow.

Every rank posts a heartbeat at regular intervals (beats), from a separate thread. A rank that waits for a message reads
the heartbeats of all ranks:

| heartbeats                                         | verdict                                                  |
|----------------------------------------------------|----------------------------------------------------------|
| none from a rank for `timeout`, and it uses no core | that rank or its host is dead or stopped                |
| none can be posted or read for `timeout`           | this rank has lost its connection to the others          |
| all ranks wait, and none has progressed for `timeout` | messages are lost: the link between them is down      |
| a rank is working, or announced a long silence     | it is slow: keep waiting, at most `PATIENCE_S`           |

Silence is counted in beats of the waiting rank, not in clock time, so that a run continues after its machine was
suspended. For a rank on the same machine the kernel decides: a process that uses a core, or waits for one, is slow and
not dead, however late its heartbeats are; any other is dead, even if it announced a long silence.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from torch.distributed.distributed_c10d import Store

from fullgraph.errors import InputError, PeerLost, one_line
from fullgraph.proc import Progress, born, network
from fullgraph.values import Value, read_value

MAX_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Value):
    """The state that a rank last posted."""

    beat: int = 0  # rises with every heartbeat
    moves: int = 0  # messages that the rank has waited for and received
    waiting: bool = False  # True while the rank waits for a message
    away: bool = False  # True during a long call that lets no other thread run, such as METIS
    doing: str = "starting"  # the rank's last message
    host: str = field(default_factory=lambda: socket.gethostname()[:200])
    pid: int = field(default_factory=os.getpid)
    network: int = field(default_factory=network)  # processes with the same number can see one another
    born: int = field(default_factory=lambda: born(os.getpid()))


class HeartbeatBoard(Protocol):
    """The place where ranks post heartbeats; it may be slow or fail when a network is cut.

    lost: why it could not be reached. may_hang: a call may never return.
    """

    lost: str
    may_hang: bool

    def post(self, rank: int, heartbeat: Heartbeat) -> None: ...
    def read(self) -> Mapping[int, Heartbeat]: ...


class FolderBoard:
    """A private folder that all ranks of one machine share, with one small file per rank."""

    lost = "its folder of heartbeats cannot be used: look for a full disk"
    may_hang = False

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def post(self, rank: int, heartbeat: Heartbeat) -> None:
        staged = self._path(rank).with_suffix(".new")
        staged.write_text(_text(heartbeat))
        os.replace(staged, self._path(rank))

    def read(self) -> dict[int, Heartbeat]:
        texts = {rank: self._path(rank) for rank in range(self.size)}
        return {rank: _heartbeat(path.read_bytes()) for rank, path in texts.items() if path.exists()}

    def _path(self, rank: int) -> Path:
        return self.folder / f"heartbeat-{rank}"


class StoreBoard:
    """The store through which ranks on several machines met, over a separate connection."""

    lost = "its network is down"
    may_hang = True

    def __init__(self, store: Store, size: int) -> None:
        self.store, self.size = store, size

    def post(self, rank: int, heartbeat: Heartbeat) -> None:
        self.store.set(_name(rank), _text(heartbeat))

    def read(self) -> dict[int, Heartbeat]:
        ranks = [rank for rank in range(self.size) if self.store.check([_name(rank)])]
        texts = self.store.multi_get([_name(rank) for rank in ranks]) if ranks else []
        return {rank: _heartbeat(text) for rank, text in zip(ranks, texts, strict=True)}


def _name(rank: int) -> str:
    return f"fullgraph/heartbeat/{rank}"


def _text(heartbeat: Heartbeat) -> str:
    return json.dumps(asdict(heartbeat))


def _heartbeat(text: bytes) -> Heartbeat:
    """Parse a heartbeat; anything else counts as a new rank's: other programs may write to a store on a network."""
    try:
        return read_value(Heartbeat, json.loads(text[:MAX_BYTES]), "a heartbeat")
    except (ValueError, RecursionError, InputError):
        return Heartbeat()


PATIENCE_S = 4 * 3600.0  # a living rank may work this long without a message: rank 0 may partition a large graph
MOST_NAMED = 4  # ranks that a message names
LATE = 2  # beats that a rank may miss before the kernel is asked
BEAT_S = 1.0  # seconds between heartbeats; a tenth of the timeout if that is shorter


@dataclass
class LivenessJudge:
    """Counts, during one wait, which ranks are silent and whether any rank progresses."""

    rank: int
    size: int
    limit: int  # beats of silence that mean death
    patience: int  # beats that a rank may work without a message
    is_working: Callable[[Heartbeat], bool | None] = lambda heartbeat: None  # asks the kernel; None: it cannot tell
    silent: dict[int, int] = field(default_factory=dict)
    unmoved: int = 0
    cut_off: int = 0
    waited: int = 0
    lost: str = "its network is down"  # why the board of heartbeats cannot be reached
    _idle: dict[int, bool] = field(default_factory=dict)  # whether the kernel saw that a rank does nothing
    _before: Mapping[int, Heartbeat] = field(default_factory=dict)
    _contact: int = -1

    def tick(self, heartbeats: Mapping[int, Heartbeat], contact: int) -> str | None:
        """Return the verdict after one more beat; None: keep waiting."""
        self.waited += 1
        self.cut_off = 0 if contact != self._contact else self.cut_off + 1
        self._contact = contact
        if self.cut_off >= self.limit:
            return f"{self._name(self.rank, heartbeats)} has lost touch with all others: {self.lost}"
        if self.cut_off:
            return None  # these heartbeats are old: they say nothing about the other ranks
        others = [rank for rank in range(self.size) if rank != self.rank]
        moved = False
        for rank in others:
            now, then = heartbeats.get(rank), self._before.get(rank)
            silent = self.silent.get(rank, 0) + 1 if now == then else 0
            is_working = self.is_working(now) if now is not None and silent > LATE else None
            self.silent[rank] = LATE if is_working else silent
            self._idle[rank] = is_working is False
            moved |= bool(is_working) or now is None or then is None or not now.waiting or now.moves != then.moves
        self.unmoved = 0 if moved else self.unmoved + 1
        self._before = dict(heartbeats)
        dead = [rank for rank in others if self.silent[rank] >= self.limit and not self._is_away(rank, heartbeats)]
        if dead:
            return _several(
                [
                    f"{self._name(rank, heartbeats)} gives no sign of life (last: {_last(heartbeats, rank)})"
                    for rank in dead
                ]
            )
        if self.unmoved >= self.limit:
            lines = [f"{self._name(rank, heartbeats)} waits too, for {_last(heartbeats, rank)}" for rank in others]
            return f"messages are lost, the link between them is down or broken: {_several(lines)}"
        busy = self.at_work(heartbeats)
        if busy and self.waited >= self.patience:
            return _several([f"{self._name(rank, heartbeats)} has been at work too long" for rank in busy])
        return None

    def at_work(self, heartbeats: Mapping[int, Heartbeat]) -> list[int]:
        """Return ranks that post heartbeats and do not wait, or that announced a long silence."""
        active = [rank for rank, heartbeat in heartbeats.items() if rank != self.rank and not heartbeat.waiting]
        return [rank for rank in active if self._is_away(rank, heartbeats) or self.silent.get(rank, 0) <= LATE]

    def _is_away(self, rank: int, heartbeats: Mapping[int, Heartbeat]) -> bool:
        return rank in heartbeats and heartbeats[rank].away and not self._idle.get(rank)

    def _name(self, rank: int, heartbeats: Mapping[int, Heartbeat]) -> str:
        last = heartbeats.get(rank)
        return f"rank {rank}" if last is None else f"rank {rank} on {one_line(last.host, 80)} (pid {last.pid})"


class _ProcessProbe:
    """Asks the kernel about processes on this machine."""

    def __init__(self) -> None:
        self.progress = Progress()

    def is_working(self, heartbeat: Heartbeat) -> bool | None:
        if heartbeat.network != network() or heartbeat.pid == os.getpid():  # simulated ranks share a process
            return None
        return born(heartbeat.pid) == heartbeat.born != 0 and self.progress.made(heartbeat.pid)


def _several(told: Sequence[str], between: str = "; ") -> str:
    """The first few texts, and the number of the others."""
    more = len(told) - MOST_NAMED
    return between.join(told[:MOST_NAMED]) + (f"{between}and {more} more" if more > 0 else "")


def _last(heartbeats: Mapping[int, Heartbeat], rank: int) -> str:
    return one_line(heartbeats[rank].doing, 120) if rank in heartbeats else "nothing, it never began"


class Watchdog:
    """Posts this rank's heartbeats, and limits how long it waits for others."""

    def __init__(self, board: HeartbeatBoard, rank: int, size: int, timeout: float) -> None:
        self.board, self.rank, self.size = board, rank, size
        self.beat_s = min(BEAT_S, timeout / 10)
        self.limit = max(3, int(0.8 * timeout / self.beat_s))
        self.host = Heartbeat().host
        self.heartbeats: Mapping[int, Heartbeat] = {}
        self.contact = 0  # beats at which the heartbeat board was reached
        self._doing, self._moves, self._waiting, self._beat = "starting", 0, 0, 0
        self._asking = False  # True during a call to the board, and after a call that failed
        self._failed = False  # True after a call that failed
        with suppress(OSError, RuntimeError):  # a short run may end before the first beat
            self._post()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pulse, name="fullgraph-pulse", daemon=True)
        self._thread.start()

    def doing(self, text: str) -> None:
        """Record this rank's last message."""
        self._doing = text

    def wait(self, done: Callable[[float], bool], text: str) -> None:
        """Wait until done(seconds), which waits at most that long, returns True; PeerLost if a peer is dead."""
        if not done(self.beat_s):
            self._doing, self._waiting = text, self._waiting + 1
            try:
                self._wait(done, text)
            finally:
                self._waiting -= 1
        self._moves += 1

    def _wait(self, done: Callable[[float], bool], text: str) -> None:
        patience = round(PATIENCE_S / self.beat_s)
        working = _ProcessProbe().is_working
        judge = LivenessJudge(self.rank, self.size, self.limit, patience, working, lost=self.board.lost)
        start = time.monotonic()
        seen = -1
        while not done(self.beat_s):
            stuck = self._failed or (self._asking and self.board.may_hang)
            if self.contact == seen and not stuck and self._thread.is_alive():
                continue  # the heartbeat thread got no core: the known heartbeats are old
            seen = self.contact
            verdict = judge.tick(self.heartbeats, seen)
            waited = time.monotonic() - start + self.beat_s
            if verdict:
                raise PeerLost(f"{self} waited {waited:.0f} s for {text}; {verdict}")
            if judge.waited % self.limit == 0:
                self._report_slow(judge.at_work(self.heartbeats), text, waited)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def close(self) -> None:
        self._over.set()
        self._thread.join(self.beat_s)

    def _report_slow(self, busy: list[int], text: str, waited: float) -> None:
        """Report the slow ranks, from the first rank that waits for them."""
        if busy and self.rank == min(set(range(self.size)) - set(busy)):
            names = _several(list(map(str, busy)), ", ")
            sys.stderr.write(f"fullgraph: rank {names} is slow: {self} has waited {waited:.0f} s for {text}\n")
            sys.stderr.flush()

    @contextmanager
    def away(self, text: str) -> Iterator[None]:
        """Announce a call that blocks all other threads, so that peers do not think that this rank died."""
        self._doing = text
        with suppress(OSError, RuntimeError):
            self._post(away=True)
        yield
        with suppress(OSError, RuntimeError):
            self._post()

    def _post(self, *, away: bool = False) -> None:
        self._beat += 1
        waiting = self._waiting > 0
        heartbeat = Heartbeat(beat=self._beat, moves=self._moves, waiting=waiting, away=away, doing=self._doing)
        self.board.post(self.rank, heartbeat)

    def _pulse(self) -> None:
        """Post a heartbeat at each beat. A board that fails is tried again; `contact` stands still meanwhile."""
        while not self._over.wait(self.beat_s):
            self._asking = True
            try:
                self._post()
                if self._waiting:
                    self.heartbeats = self.board.read()
                self.contact += 1
                self._asking = self._failed = False
            except (OSError, RuntimeError):
                self._failed = True
