"""The working process's side of a display: what it does now, in a few words, for a person or for a log."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TextIO

from fullgraph.display import painter
from fullgraph.errors import one_line
from fullgraph.words import duration

LATER_S = 5.0  # into a log: a command that is done by then needs no process that counts its seconds
LONG_S = 1.0  # a phase that took longer leaves a line
PATIENCE_S = 2.0  # with a painter that was told to end
EVERY_S = 0.1  # how often at most a change of figures is passed on

Rows = tuple[tuple[str, ...], ...]
Told = Callable[[int, int], None]  # so many are done, of so many


@dataclass(frozen=True)
class Shown:
    """All that a painter knows; times are of the system's monotonic clock."""

    doing: str = ""  # the phase; nothing: none
    since: float = 0.0  # when it began
    done: int = 0
    total: int = 0  # 0: nobody can tell
    said: float = 0.0  # when a line was printed last
    rows: Rows = ()  # of a table
    lines: tuple[str, ...] = ()  # to print once


@dataclass
class Display:
    """Phases and tables. mode: live or ascii (a terminal), lines (anything else) or silent.

    The drawing is done by another process, `painter.py`, which nobody waits for. Where it cannot be started, the
    lines that begin phases are all there is.
    """

    mode: str = "silent"
    stream: TextIO | None = None  # None: standard output
    _shown: Shown = field(default=Shown(), init=False)
    _painter: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _later: threading.Timer | None = field(default=None, init=False)
    _sent: float = field(default=0.0, init=False)

    @property
    def live(self) -> bool:
        return self.mode in ("live", "ascii")

    @contextmanager
    def phase(self, text: str, total: int = 0, *, at_once: bool = False) -> Iterator[Told]:
        """While it lasts, people see `text`; call what it gives with (done, total) to say how far it is.

        at_once: it may run for long inside a library that lets no thread of ours run.
        """
        if self.mode == "silent" or not text:
            yield _ignore
            return
        outer, text = self._shown, one_line(text, 200)
        began = time.monotonic()
        self._show(replace(outer, doing=text, since=began, done=0, total=total))
        if not self.live and not outer.doing:
            self.line(text)
        self._begin(at_once=at_once)
        try:
            yield self.progress
        finally:
            took = time.monotonic() - began
            self._show(replace(outer, said=self._shown.said, rows=self._shown.rows))
            if self.live and took > LONG_S and not outer.doing:
                self.line(f"{text}  {duration(took)}")

    def progress(self, done: int, total: int, *, piece: str = "", rows: Rows = ()) -> None:
        """How far the phase is. Most calls return at once: figures are passed on now and then.

        piece: of the phase, which begins now; its seconds are counted from here. rows: a table above it.
        """
        shown = replace(self._shown, done=done, total=total, rows=rows or self._shown.rows)
        if piece:
            shown = replace(shown, doing=piece, since=time.monotonic())
        self._show(shown, urgent=False)

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.mode == "silent":
            return
        if self.live and self._painter is not None and self._send(replace(self._shown, lines=(text,))):
            return
        print(f"{text}\n", end="", file=self.stream, flush=True)  # one write: nothing can come between
        self._show(replace(self._shown, said=time.monotonic()))

    def quiet_for(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._shown.said

    def close(self) -> None:
        """Take the drawing away; a later phase begins it anew."""
        if self._later is not None:
            self._later.cancel()
            self._later.join()
            self._later = None
        if self._painter is not None:
            self._send(self._shown)
            assert self._painter.stdin is not None
            with suppress(OSError):
                self._painter.stdin.close()
            try:
                self._painter.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:  # nobody reads the terminal
                self._painter.kill()
                self._painter.wait()
            self._painter = None
        self._shown = Shown()

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, *, at_once: bool) -> None:
        if self._painter is not None:
            return
        if self.live or at_once:
            self._start()
        elif self._later is None:
            self._later = threading.Timer(LATER_S, self._start)
            self._later.daemon = True
            self._later.start()

    def _start(self) -> None:
        """A second painter is not started; two calls may meet, of a phase and of the timer."""
        with _STARTING:
            if self._painter is not None:
                return
            line = [sys.executable, "-I", "-S", painter.__file__, self.mode]
            out = None if self.stream is None else self.stream.fileno()
            with suppress(OSError):
                self._painter = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL)
                assert self._painter.stdin is not None
                os.set_blocking(self._painter.stdin.fileno(), False)
        self._send(self._shown)

    def _show(self, shown: Shown, *, urgent: bool = True) -> None:
        self._shown = shown
        if self._painter is not None and (urgent or time.monotonic() - self._sent > EVERY_S):
            self._send(shown)

    def _send(self, shown: Shown) -> bool:
        """Pass it on without waiting; a painter that does not read loses it."""
        if self._painter is None or self._painter.stdin is None:
            return False
        self._sent = time.monotonic()
        try:
            os.write(self._painter.stdin.fileno(), json.dumps(asdict(shown)).encode() + b"\n")
        except (OSError, ValueError):
            return False
        return True


_STARTING = threading.Lock()
SILENT = Display()


def _ignore(done: int, total: int) -> None:
    pass


def shown(*, errors: bool = False) -> Display:
    """A display on standard output or, where that is for a machine to read, on standard error; of rank 0 alone."""
    if os.environ.get("RANK", "0") != "0":
        return Display()
    stream = sys.stderr if errors else sys.stdout
    if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Display("lines", sys.stderr if errors else None)
    mode = "live" if (stream.encoding or "").lower().startswith("utf") else "ascii"
    return Display(mode, sys.stderr if errors else None)
