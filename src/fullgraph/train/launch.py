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
from fullgraph.errors import Interrupted, RankFailed, signal_name
from fullgraph.own_code import told_by_rank
from fullgraph.report import Phases
from fullgraph.storage import scratch
from fullgraph.train.fork_server import ForkServer, RankProcess
from fullgraph.train.rank_io import REPORT, SIGNALS, STARTUP, ExitReport, ignore, interrupt
from fullgraph.values import read_value

EXIT_INPUT, EXIT_STOPPED = 2, 3  # a rank's exit status when the input is wrong, and when a signal stopped it
CAUSE_S = 3.0  # after a rank says that a peer is gone, the launcher waits so long for the peer's own end

ONE_REQUEST_S = 0.5  # signals that follow one another faster are one request: `timeout` sends two


@dataclass(eq=False)
class _Child:
    rank: int
    process: RankProcess
    pipe: int
    words: bytes = b""
    ended_at: float = 0.0

    def exit_report(self) -> ExitReport | None:
        with suppress(ValueError):
            return read_value(ExitReport, json.loads(self.words), "last words")
        return None

    @property
    def kind(self) -> str:
        """Of its last words; nothing: it ended without."""
        words = self.exit_report()
        return words.kind if words else ""

    def end(self) -> str:
        """How it ended, where it said nothing."""
        status, who = self.process.returncode, f"rank {self.rank} (pid {self.process.pid})"
        if status is None:
            return f"{who} ended without a word; how is unknown, since this process ignores SIGCHLD"
        if status < 0:
            return f"{who} was ended by {signal_name(-status)}"
        return f"{who} ended with status {status} before its work was done; look for os._exit in your own code"


@dataclass(eq=False)
class _Ears:
    """Where the numbers of signals can be read."""

    pipe: int | None
    leaving: bool = False  # a command that stops because of a signal needs no other


@dataclass(eq=False)
class _Crew:
    """The ranks, and the signals that this process has received for them."""

    children: list[_Child]
    signals: int | None
    asked: list[int] = field(default_factory=list)
    asked_at: float = 0.0
    asked_twice: bool = False  # a person, or a service manager, no longer waits

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
                        if self.asked_twice:
                            return
                    elif self._ended(key.data):
                        selector.unregister(key.fd)
                        if key.data.kind == "lost":
                            deadline = time.monotonic() + CAUSE_S
                        elif key.data.kind not in ("done", "stopped"):
                            return

    def _ended(self, child: _Child) -> bool:
        """Read what a rank says; its pipe closes when it ends."""
        text = os.read(child.pipe, 65536)
        child.words += text
        if not text:
            child.process.wait()
            child.ended_at = time.monotonic()
        return not text

    def _relay(self, number: int) -> None:
        """Pass a signal on. A closed terminal sends SIGHUP several times, so that it never is a second request."""
        now = time.monotonic()
        if self.asked and number != signal.SIGHUP and now - self.asked_at > ONE_REQUEST_S:
            self.asked_twice = True
        self.asked_at = self.asked_at or now
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
        """The first cause: a rank that ended without a word, else bad input, else a crash, else a lost peer."""
        ended = sorted((c for c in self.children if c.ended_at), key=lambda child: child.ended_at)
        for child in ended:
            terminated = bool(self.asked) and child.process.returncode == -signal.SIGTERM
            if not child.kind and not terminated:
                why = " for lack of memory" if _oom_kills() > killed_before else ""
                return RankFailed(f"{child.end()}{why}; the other ranks were stopped")
        for kind in ("input", "failed", "lost"):
            for child in ended:
                words = child.exit_report()
                if words is not None and words.kind == kind:
                    if kind == "input":
                        return told_by_rank(words.text, words.trace)
                    sys.stderr.write(words.trace)
                    return RankFailed(f"rank {child.rank} failed: {words.text}")
        return None

    def stopped(self) -> Interrupted | None:
        """What to say when a signal to this process, or to one of its ranks, asked the run to stop."""
        said = [words.text for child in self.children if (words := child.exit_report()) and words.kind == "stopped"]
        if all(child.kind == "done" for child in self.children) or not (said or self.asked):
            return None
        # A rank under a launcher listens to SIGTERM alone.
        number = self.asked[0] if self.asked else signal.SIGTERM
        return Interrupted(said[0] if said else "no checkpoint was added", number)


def launch(
    parts: int,
    args: Sequence[str],
    *,
    inherit: Sequence[int] = (),
    phases: Phases | None = None,
    fork_server: ForkServer,
    classes: str = "",
) -> None:
    """Run the fork server's worker with `args` as `parts` ranks that die with this process; returns when all are done.

    inherit: descriptors that ranks keep open, such as the lock of their run's folder. phases: what the start has taken
    until now, for the ranks' own account of it. fork_server: starts them, and is closed. classes: the user's own
    that are in no file, packed.
    """
    told = {STARTUP: json.dumps([phases.seconds, time.time()])} if phases else {}
    killed_before = _oom_kills()
    # Not in the run's folder: ranks meet also when its disk is full.
    with scratch(Path(tempfile.gettempdir())) as meeting, _listening() as ears:
        crew = _Crew([], ears.pipe)
        try:
            display = phases.display if phases else SILENT
            with display, display.phase(f"starting {count(parts, 'rank')}"), fork_server as source:
                for rank in range(parts):
                    crew.children.append(_start(source, rank, parts, meeting, args, inherit, told, classes))
            crew.watch()
        finally:
            crew.end()
        trouble = crew.failure(killed_before) or crew.stopped()
        ears.leaving = isinstance(trouble, Interrupted)
    if trouble is not None:
        raise trouble


def _start(
    source: ForkServer, rank: int, parts: int, meeting: Path, args: Sequence[str], inherit: Sequence[int],
    told: Mapping[str, str], classes: str,
) -> _Child:  # fmt: skip
    read, write = os.pipe()
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": parts, "LOCAL_WORLD_SIZE": parts, MEETING: meeting}
    environ = {name: str(value) for name, value in about.items()} | dict(told)
    try:
        process = source.spawn(f"fullgraph-{rank}", args, environ, (REPORT, write), inherit, classes)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    return _Child(rank, process, read)


@contextmanager
def _listening() -> Iterator[_Ears]:
    """Signals arrive as bytes in a pipe while the block runs; there is none where signals go to another thread."""
    if threading.current_thread() is not threading.main_thread():
        yield _Ears(None)
        return
    read, write = os.pipe()
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def hear(number: int, frame: object) -> None:
        os.write(write, bytes([number]))

    before = {number: signal.signal(number, hear) for number in heard}
    ears = _Ears(read)
    try:
        yield ears
    finally:
        for number, handler in before.items():
            signal.signal(number, ignore if ears.leaving and handler is interrupt else handler)
        os.close(read)
        os.close(write)


def _oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since it started."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
