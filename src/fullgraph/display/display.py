"""The working process's side of a display: it describes the current phase, for a person or for a log."""

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

LATER_S = 5.0  # in a log, a command that is shorter than this starts no painter
LONG_S = 1.0  # a phase that takes longer leaves a line
PATIENCE_S = 2.0  # seconds that a painter has to end
EVERY_S = 0.1  # minimum seconds between updates of figures

Rows = tuple[tuple[str, ...], ...]
OnProgress = Callable[[int, int], None]  # receives (done, total)


@dataclass(frozen=True)
class Shown:
    """The painter's whole state; times are those of the system's monotonic clock."""

    doing: str = ""  # the phase; empty: no phase
    since: float = 0.0  # the phase's beginning
    done: int = 0
    total: int = 0  # 0: unknown
    said: float = 0.0  # time of the last printed line
    rows: Rows = ()  # a table's rows
    lines: tuple[str, ...] = ()  # to print once


@dataclass
class Display:
    """Phases and tables. mode: live or ascii (a terminal), lines (anything else) or silent.

    Another process, `painter.py`, does the drawing, and no process waits for it. If it cannot be started, the display
    prints only the lines that begin phases.
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
    def phase(self, text: str, total: int = 0, *, at_once: bool = False) -> Iterator[OnProgress]:
        """Show `text` while the block runs; the yielded function takes (done, total) and shows the progress.

        at_once: the block may call a library that blocks all threads of this process for a long time.
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
        """Show the progress of the phase. Most calls return at once: figures are updated from time to time.

        piece: a part of the phase that begins now; its seconds are counted from here. rows: a table above the bar.
        """
        shown = replace(self._shown, done=done, total=total, rows=rows or self._shown.rows)
        if piece:
            shown = replace(shown, doing=piece, since=time.monotonic())
        self._show(shown, urgent=False)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        if self.mode == "silent":
            return
        if self.live and self._painter is not None and self._send(replace(self._shown, lines=(text,))):
            return
        print(f"{text}\n", end="", file=self.stream, flush=True)  # a single write cannot be interleaved
        self._show(replace(self._shown, said=time.monotonic()))

    def quiet_for(self) -> float:
        """Return the seconds since the last line."""
        return time.monotonic() - self._shown.said

    def close(self) -> None:
        """Remove the drawing; a later phase draws it again."""
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
            except subprocess.TimeoutExpired:  # the terminal's output is stopped
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
        """Start the painter unless it runs already: a phase and the timer may call this at the same time."""
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
        """Send the state without waiting; a painter that does not read is dropped."""
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
    """Open a display on standard output, or on standard error if programs read standard output; only on rank 0."""
    if os.environ.get("RANK", "0") != "0":
        return Display()
    stream = sys.stderr if errors else sys.stdout
    if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Display("lines", sys.stderr if errors else None)
    mode = "live" if (stream.encoding or "").lower().startswith("utf") else "ascii"
    return Display(mode, sys.stderr if errors else None)
