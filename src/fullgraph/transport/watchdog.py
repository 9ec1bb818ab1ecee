"""The watchdog: nobody waits for ever, and nobody gives up a rank that is only slow.

Every rank leaves a sign of life each beat, from a thread of its own. A rank that waits for a message reads the signs:

| signs                                              | verdict                                              |
|----------------------------------------------------|------------------------------------------------------|
| a rank has left none for `timeout`, and is not at work either | that rank, or its host, is dead or stopped |
| no sign can be left or read for `timeout`          | this rank has lost the others                        |
| all ranks wait, and none has moved for `timeout`   | messages are lost: the link between the two is down  |
| some rank is at work, or said it would be silent   | slow: wait on, for `PATIENCE_S` at the most          |

Silence is counted in beats of the one who listens and not by the clock, so that a machine that was suspended wakes up
to a run that goes on. Of a rank on the listener's own machine the kernel is asked, too: a process that uses a core, or
would if it got one, is slow and not dead, however long its signs have not come.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from fullgraph.errors import PeerLost, one_line
from fullgraph.proc import Progress, born, network
from fullgraph.transport.heartbeat import Heartbeat, HeartbeatBoard

PATIENCE_S = 4 * 3600.0  # how long a living rank may be at work without a message: rank 0 may cut a large graph
LATE = 2  # beats that may be missed; then the kernel is asked
BEAT_S = 1.0  # a sign of life this often, or ten times in a timeout


@dataclass
class LivenessJudge:
    """Counts, beat by beat of one wait, who is silent and whether anything moves."""

    rank: int
    size: int
    limit: int  # beats of silence that count as death
    patience: int  # beats that a rank may be at work
    at_it: Callable[[Heartbeat], bool] = lambda sign: False  # does the kernel say that it is at work?
    silent: dict[int, int] = field(default_factory=dict)
    unmoved: int = 0
    cut_off: int = 0
    waited: int = 0
    _before: Mapping[int, Heartbeat] = field(default_factory=dict)
    _contact: int = -1

    def tick(self, signs: Mapping[int, Heartbeat], contact: int) -> str | None:
        """The verdict after one more beat; None: wait on."""
        self.waited += 1
        self.cut_off = 0 if contact != self._contact else self.cut_off + 1
        self._contact = contact
        if self.cut_off >= self.limit:
            return f"{self._name(self.rank, signs)} has lost touch with all others: its network is down"
        if self.cut_off:
            return None  # these signs are old: nobody else may be judged by them
        others = [rank for rank in range(self.size) if rank != self.rank]
        moved = False
        for rank in others:
            now, then = signs.get(rank), self._before.get(rank)
            silent = self.silent.get(rank, 0) + 1 if now == then else 0
            at_it = now is not None and silent > LATE and self.at_it(now)
            self.silent[rank] = LATE if at_it else silent
            moved |= at_it or now is None or then is None or not now.waiting or now.moves != then.moves
        self.unmoved = 0 if moved else self.unmoved + 1
        self._before = dict(signs)
        dead = [rank for rank in others if self.silent[rank] >= self.limit and not _is_away(signs, rank)]
        if dead:
            told = [f"{self._name(rank, signs)} gives no sign of life (last: {_last(signs, rank)})" for rank in dead]
            return "; ".join(told)
        if self.unmoved >= self.limit:
            told = [f"{self._name(rank, signs)} waits too, for {_last(signs, rank)}" for rank in others]
            return f"messages are lost, the link between them is down or broken: {'; '.join(told)}"
        busy = self.at_work(signs)
        if busy and self.waited >= self.patience:
            return "; ".join(f"{self._name(rank, signs)} has been at work too long" for rank in busy)
        return None

    def at_work(self, signs: Mapping[int, Heartbeat]) -> list[int]:
        """Ranks that give signs of life and do not wait, or that said they would be silent."""
        heard = [rank for rank, sign in signs.items() if rank != self.rank and not sign.waiting]
        return [rank for rank in heard if signs[rank].away or self.silent.get(rank, 0) <= LATE]

    def _name(self, rank: int, signs: Mapping[int, Heartbeat]) -> str:
        sign = signs.get(rank)
        return f"rank {rank}" if sign is None else f"rank {rank} on {one_line(sign.host, 80)} (pid {sign.pid})"


class _Kernel:
    """What it knows of the processes that left a sign, where they are on this machine."""

    def __init__(self) -> None:
        self.progress = Progress()

    def at_it(self, sign: Heartbeat) -> bool:
        if sign.network != network() or sign.pid == os.getpid():  # simulated ranks share a process
            return False
        return born(sign.pid) == sign.born != 0 and self.progress.made(sign.pid)


def _is_away(signs: Mapping[int, Heartbeat], rank: int) -> bool:
    return rank in signs and signs[rank].away


def _last(signs: Mapping[int, Heartbeat], rank: int) -> str:
    return one_line(signs[rank].doing, 120) if rank in signs else "nothing, it never began"


class Watchdog:
    """This rank's signs of life, and its patience with the others'."""

    def __init__(self, board: HeartbeatBoard, rank: int, size: int, timeout: float) -> None:
        self.board, self.rank, self.size = board, rank, size
        self.beat_s = min(BEAT_S, timeout / 10)
        self.limit = max(3, int(0.8 * timeout / self.beat_s))
        self.host = Heartbeat().host
        self.signs: Mapping[int, Heartbeat] = {}
        self.contact = 0  # beats at which the board could be reached
        self._doing, self._moves, self._waiting, self._beat = "starting", 0, 0, 0
        self._asking = False  # is it in a call to the board, or did the last one fail?
        with suppress(OSError, RuntimeError):  # a run may be over its first epochs before the first beat
            self._post()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pulse, name="fullgraph-pulse", daemon=True)
        self._thread.start()

    def doing(self, text: str) -> None:
        """Note this rank's last message."""
        self._doing = text

    def wait(self, done: Callable[[float], bool], text: str) -> None:
        """Return when done(seconds), which waits so long at the most, says so; PeerLost when nobody will come."""
        if not done(self.beat_s):
            self._doing, self._waiting = text, self._waiting + 1
            try:
                self._wait(done, text)
            finally:
                self._waiting -= 1
        self._moves += 1

    def _wait(self, done: Callable[[float], bool], text: str) -> None:
        judge = LivenessJudge(self.rank, self.size, self.limit, round(PATIENCE_S / self.beat_s), at_it=_Kernel().at_it)
        start = time.monotonic()
        seen = -1
        while not done(self.beat_s):
            if self.contact == seen and not self._asking and self._thread.is_alive():
                continue  # the thread that asks got no core meanwhile: what is known is old
            seen = self.contact
            verdict = judge.tick(self.signs, seen)
            waited = time.monotonic() - start + self.beat_s
            if verdict:
                raise PeerLost(f"{self} waited {waited:.0f} s for {text}; {verdict}")
            if judge.waited % self.limit == 0:
                self._tell_slow(judge.at_work(self.signs), text, waited)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def close(self) -> None:
        self._over.set()
        self._thread.join(self.beat_s)

    def _tell_slow(self, busy: list[int], text: str, waited: float) -> None:
        """One of those who wait says who keeps them waiting."""
        if busy and self.rank == min(set(range(self.size)) - set(busy)):
            names = ", ".join(map(str, busy))
            sys.stderr.write(f"fullgraph: rank {names} is slow: {self} has waited {waited:.0f} s for {text}\n")
            sys.stderr.flush()

    @contextmanager
    def away(self, text: str) -> Iterator[None]:
        """Say first that a call will let no other thread run, so that its silence is not taken for death."""
        self._doing = text
        with suppress(OSError, RuntimeError):
            self._post(away=True)
        yield

    def _post(self, *, away: bool = False) -> None:
        self._beat += 1
        sign = Heartbeat(beat=self._beat, moves=self._moves, waiting=self._waiting > 0, away=away, doing=self._doing)
        self.board.post(self.rank, sign)

    def _pulse(self) -> None:
        """Leave a sign each beat; a board that fails is tried again, and `contact` tells how long it has failed."""
        while not self._over.wait(self.beat_s):
            self._asking = True
            with suppress(OSError, RuntimeError):
                self._post()
                if self._waiting:
                    self.signs = self.board.read()
                self.contact += 1
                self._asking = False
