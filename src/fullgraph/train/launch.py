"""Starts the ranks of one machine as child processes, watches them, and says which one failed and why.

Ranks meet in a folder that only this user can open, and talk over loopback: nothing on the network can reach them.
"""

import json
import os
import selectors
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fullgraph.display import SILENT, count
from fullgraph.environ import MEETING
from fullgraph.errors import InputError, Interrupted, RankFailed
from fullgraph.report import Phases
from fullgraph.storage import scratch
from fullgraph.train.nursery import Nursery, RankProcess
from fullgraph.train.stopping import REPORT, STARTUP, LastWords
from fullgraph.values import read_value

EXIT_INPUT, EXIT_STOPPED = 2, 3  # a rank's exit status when the input is wrong, and when a signal stopped it
CAUSE_S = 3.0  # after a rank says that a peer is gone, the launcher waits so long for the peer's own end

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(eq=False)
class _Child:
    rank: int
    process: RankProcess
    pipe: int
    words: bytes = b""
    ended_at: float = 0.0

    def ended_well(self, asked: Sequence[int]) -> bool:
        """Done, or stopped because a signal asked for it."""
        status = self.process.returncode
        return status in (0, EXIT_STOPPED) or (bool(asked) and status == -signal.SIGTERM)

    def last_words(self) -> LastWords | None:
        with suppress(ValueError):
            return read_value(LastWords, json.loads(self.words), "last words")
        return None


@dataclass(eq=False)
class _Crew:
    """The ranks, and the signals that this process has received for them."""

    children: list[_Child]
    signals: int | None  # where signal numbers can be read
    asked: list[int] = field(default_factory=list)

    def watch(self) -> None:
        """Until all ranks are done, or one has failed, or a second signal says to leave at once."""
        with selectors.DefaultSelector() as selector:
            for child in self.children:
                selector.register(child.pipe, selectors.EVENT_READ, child)
            if self.signals is not None:
                selector.register(self.signals, selectors.EVENT_READ, None)
            deadline: float | None = None
            while any(not child.ended_at for child in self.children):
                patience = None if deadline is None else deadline - time.monotonic()
                if patience is not None and patience <= 0:
                    return
                for key, _ in selector.select(patience):
                    if key.data is None:
                        self._relay(os.read(key.fd, 1)[0])
                        if len(self.asked) > 1:
                            return
                    elif self._ended(key.data):
                        selector.unregister(key.fd)
                        if key.data.process.returncode not in (0, EXIT_STOPPED):
                            words = key.data.last_words()
                            if words is None or words.kind != "lost":
                                return
                            deadline = time.monotonic() + CAUSE_S

    def _ended(self, child: _Child) -> bool:
        """Read what a rank says; its pipe closes when it ends."""
        text = os.read(child.pipe, 65536)
        child.words += text
        if not text:
            child.process.wait()
            child.ended_at = time.monotonic()
        return not text

    def _relay(self, number: int) -> None:
        self.asked.append(number)
        for child in self.children:
            child.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Leave no rank behind; one that is stopped dies too."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.wait()
            os.close(child.pipe)

    def failure(self, killed_before: int) -> Exception | None:
        """The first cause: a rank that a signal ended, else bad input, else a crash, else a rank that lost a peer."""
        ended = sorted((c for c in self.children if c.ended_at), key=lambda child: child.ended_at)
        failed = [child for child in ended if not child.ended_well(self.asked)]
        for child in failed:
            status = child.process.returncode or 0
            if status < 0:
                who, name = f"rank {child.rank} (pid {child.process.pid})", signal.Signals(-status).name
                why = " for lack of memory" if _oom_kills() > killed_before else ""
                return RankFailed(f"{who} was ended by {name}{why}; the other ranks were stopped")
        said = [(child, child.last_words()) for child in failed]
        for kind in ("input", "failed", "lost"):
            for child, words in said:
                if words is not None and words.kind == kind:
                    sys.stderr.write(words.trace)
                    if kind == "input":
                        return InputError(words.text)
                    return RankFailed(f"rank {child.rank} failed: {words.text}")
        for child in failed:
            return RankFailed(f"rank {child.rank} ended with status {child.process.returncode} without a word")
        return None

    def stopped(self) -> Interrupted | None:
        """What to say when a signal asked to leave and some rank did not come to its own end."""
        if not self.asked or all(child.process.returncode == 0 for child in self.children):
            return None
        said = [words.text for child in self.children if (words := child.last_words()) and words.kind == "stopped"]
        return Interrupted(said[0] if said else "no checkpoint was added", self.asked[0])


def launch(
    parts: int,
    args: Sequence[str],
    *,
    inherit: Sequence[int] = (),
    phases: Phases | None = None,
    nursery: Nursery,
    classes: str = "",
) -> None:
    """Run the nursery's worker with `args` as `parts` ranks that die with this process; returns when all are done.

    inherit: descriptors that ranks keep open, such as the lock of their run's folder. phases: what the start has taken
    until now, for the ranks' own account of it. nursery: where they come from; it is closed. classes: the user's own
    that are in no file, packed.
    """
    told = {STARTUP: json.dumps([phases.seconds, time.time()])} if phases else {}
    killed_before = _oom_kills()
    # Not in the run's folder: ranks meet also when its disk is full.
    with scratch(Path(tempfile.gettempdir())) as meeting, _listening() as signals:
        crew = _Crew([], signals)
        try:
            display = phases.display if phases else SILENT
            with display, display.phase(f"starting {count(parts, 'rank')}"), nursery as source:
                for rank in range(parts):
                    crew.children.append(_start(source, rank, parts, meeting, args, inherit, told, classes))
            crew.watch()
        finally:
            crew.end()
    trouble = crew.failure(killed_before) or crew.stopped()
    if trouble is not None:
        raise trouble


def _start(
    source: Nursery, rank: int, parts: int, meeting: Path, args: Sequence[str], inherit: Sequence[int],
    told: Mapping[str, str], classes: str,
) -> _Child:  # fmt: skip
    read, write = os.pipe()
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": parts, "LOCAL_WORLD_SIZE": parts, MEETING: meeting}
    environ = {name: str(value) for name, value in about.items()} | dict(told)
    try:
        process = source.bear(f"fullgraph-{rank}", args, environ, (REPORT, write), inherit, classes)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    return _Child(rank, process, read)


@contextmanager
def _listening() -> Iterator[int | None]:
    """A descriptor on which signals arrive as bytes while the block runs; None where signals go to another thread."""
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    read, write = os.pipe()
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def hear(number: int, frame: object) -> None:
        os.write(write, bytes([number]))

    before = {number: signal.signal(number, hear) for number in heard}
    try:
        yield read
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def _oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since it started."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
