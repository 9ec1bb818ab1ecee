"""Start the ranks of one machine as child processes, watch them, and report which rank failed and why.

Ranks meet in a folder that only this user can open, and communicate over loopback: nothing on the network can reach
them.
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

EXIT_INPUT, EXIT_STOPPED = 2, 3  # a rank's exit status after wrong input, and after a signal
CAUSE_S = 3.0  # seconds to wait for a lost peer's own end after another rank reports the loss

ONE_REQUEST_S = 0.5  # signals within this time count as one request: `timeout` sends two


@dataclass(eq=False)
class _Child:
    rank: int
    process: RankProcess
    pipe: int
    report: bytes = b""
    ended_at: float = 0.0

    def exit_report(self) -> ExitReport | None:
        with suppress(ValueError):
            return read_value(ExitReport, json.loads(self.report), "a rank's exit report")
        return None

    @property
    def kind(self) -> str:
        """The kind of its exit report; empty if it left none."""
        report = self.exit_report()
        return report.kind if report else ""

    def end(self) -> str:
        """Describe the end of a rank that left no exit report."""
        status, who = self.process.returncode, f"rank {self.rank} (pid {self.process.pid})"
        if status is None:
            return f"{who} ended without an exit report and with unknown status, since this process ignores SIGCHLD"
        if status < 0:
            return f"{who} was ended by {signal_name(-status)}"
        return f"{who} ended with status {status} before its work was done; look for os._exit in your own code"


@dataclass(eq=False)
class _SignalPipe:
    """The pipe from which signal numbers can be read."""

    pipe: int | None
    leaving: bool = False  # the command is ending because of a signal and ignores further ones


@dataclass(eq=False)
class _Ranks:
    """The ranks, and the signals that this process received for them."""

    children: list[_Child]
    signals: int | None
    asked: list[int] = field(default_factory=list)
    asked_at: float = 0.0
    asked_twice: bool = False  # a second signal: a person or a service manager no longer waits

    def watch(self) -> None:
        """Wait until all ranks have ended, one has failed, or a second signal demands an immediate end."""
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
        """Read a rank's exit report; return True when its pipe closes, which means that it ended."""
        text = os.read(child.pipe, 65536)
        child.report += text
        if not text:
            child.process.wait()
            child.ended_at = time.monotonic()
        return not text

    def _relay(self, number: int) -> None:
        """Forward a signal. SIGHUP never counts as a second request: a closed terminal sends it several times."""
        now = time.monotonic()
        if self.asked and number != signal.SIGHUP and now - self.asked_at > ONE_REQUEST_S:
            self.asked_twice = True
        self.asked_at = self.asked_at or now
        self.asked.append(number)
        for child in self.children:
            child.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill all ranks that still run, including stopped ones."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.wait()
            os.close(child.pipe)

    def failure(self, killed_before: int) -> Exception | None:
        """Return the first cause: a rank without an exit report, else bad input, else a crash, else a lost peer."""
        ended = sorted((c for c in self.children if c.ended_at), key=lambda child: child.ended_at)
        for child in ended:
            terminated = bool(self.asked) and child.process.returncode == -signal.SIGTERM
            if not child.kind and not terminated:
                why = " for lack of memory" if _oom_kills() > killed_before else ""
                return RankFailed(f"{child.end()}{why}; the other ranks were stopped")
        for kind in ("input", "failed", "lost"):
            for child in ended:
                report = child.exit_report()
                if report is not None and report.kind == kind:
                    if kind == "input":
                        return told_by_rank(report.text, report.trace)
                    sys.stderr.write(report.trace)
                    return RankFailed(f"rank {child.rank} failed: {report.text}")
        return None

    def stopped(self) -> Interrupted | None:
        """Return the error to raise after a signal to this process, or to one of its ranks, stopped the run."""
        said = [report.text for child in self.children if (report := child.exit_report()) and report.kind == "stopped"]
        if all(child.kind == "done" for child in self.children) or not (said or self.asked):
            return None
        # Under a launcher, a rank handles only SIGTERM.
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
    """Run the fork server's worker with `args` as `parts` ranks that die with this process; return when all are done.

    inherit: descriptors that ranks keep open, such as the lock of their run's folder. phases: durations of the start so
    far, which ranks add to. fork_server: starts the ranks, and is closed. classes: the user's classes that are defined
    in no file, packed.
    """
    startup = {STARTUP: json.dumps([phases.seconds, time.time()])} if phases else {}
    killed_before = _oom_kills()
    # Not in the run's folder: ranks must meet even if its disk is full.
    with scratch(Path(tempfile.gettempdir())) as meeting, _signals_as_bytes() as signal_pipe:
        ranks = _Ranks([], signal_pipe.pipe)
        try:
            display = phases.display if phases else SILENT
            with display, display.phase(f"starting {count(parts, 'rank')}"), fork_server as source:
                for rank in range(parts):
                    ranks.children.append(_start(source, rank, parts, meeting, args, inherit, startup, classes))
            ranks.watch()
        finally:
            ranks.end()
        trouble = ranks.failure(killed_before) or ranks.stopped()
        signal_pipe.leaving = isinstance(trouble, Interrupted)
    if trouble is not None:
        raise trouble


def _start(
    source: ForkServer, rank: int, parts: int, meeting: Path, args: Sequence[str], inherit: Sequence[int],
    startup: Mapping[str, str], classes: str,
) -> _Child:  # fmt: skip
    read, write = os.pipe()
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": parts, "LOCAL_WORLD_SIZE": parts, MEETING: meeting}
    environ = {name: str(value) for name, value in about.items()} | dict(startup)
    try:
        process = source.spawn(f"fullgraph-{rank}", args, environ, (REPORT, write), inherit, classes)
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    return _Child(rank, process, read)


@contextmanager
def _signals_as_bytes() -> Iterator[_SignalPipe]:
    """While the block runs, signals arrive as bytes in a pipe; there is no pipe outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield _SignalPipe(None)
        return
    read, write = os.pipe()
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def forward(number: int, frame: object) -> None:
        os.write(write, bytes([number]))

    before = {number: signal.signal(number, forward) for number in handled}
    signal_pipe = _SignalPipe(read)
    try:
        yield signal_pipe
    finally:
        for number, handler in before.items():
            signal.signal(number, ignore if signal_pipe.leaving and handler is interrupt else handler)
        os.close(read)
        os.close(write)


def _oom_kills() -> int:
    """Return the number of processes that the kernel has ended for lack of memory since it started."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
