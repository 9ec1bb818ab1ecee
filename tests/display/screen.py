"""A small terminal emulator: the screen's contents after some bytes."""

import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

ESCAPE = re.compile(r"\x1b\[(\d*)([A-Z])")


@dataclass
class Screen:
    """Lines of unlimited length; understands return, newline, `[J` (clear to the end) and `[nA` (up)."""

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    column: int = 0

    def feed(self, text: str) -> "Screen":
        while text:
            found = ESCAPE.match(text)
            if found:
                self._escape(found[2], int(found[1] or 1))
                text = text[found.end() :]
            else:
                self._put(text[0])
                text = text[1:]
        return self

    def _escape(self, kind: str, number: int) -> None:
        if kind == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif kind == "A":
            self.row = max(0, self.row - number)

    def _put(self, sign: str) -> None:
        if sign == "\r":
            self.column = 0
        elif sign == "\n":
            self.row += 1
            self.lines += [""] * (self.row + 1 - len(self.lines))
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + sign + line[self.column + 1 :]
            self.column += 1


@dataclass(frozen=True)
class Seen:
    """A command's output, with the time of each piece, and its exit status."""

    code: int
    pieces: list[tuple[float, str]]

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    @property
    def longest_silence(self) -> float:
        times = [0.0, *(second for second, _ in self.pieces)]
        return max(later - earlier for earlier, later in pairwise(times))


def watch(command, cwd, *, terminal="", after="", typed=""):
    """Run `fullgraph COMMAND` with its output in a pipe or, with the name of a kind, in a terminal of 80 columns.

    typed: text that a person types when `after` appears.
    """
    line = [sys.executable, "-m", "fullgraph", *map(str, command)]
    env = {**os.environ, "TERM": terminal or "dumb", "COLUMNS": "80", "LINES": "40", "PYTHONIOENCODING": "utf-8"}
    read, write = pty.openpty() if terminal else os.pipe()
    started, pieces, text = time.monotonic(), [], ""
    with subprocess.Popen(
        line, cwd=cwd, env=env, stdin=write if terminal else subprocess.DEVNULL, stdout=write, stderr=write,
        start_new_session=True, preexec_fn=_take_terminal if terminal else None,
    ) as process:  # fmt: skip
        os.close(write)
        with suppress(OSError):  # a terminal that no process has open any more
            while data := os.read(read, 65536):
                pieces.append((time.monotonic() - started, data.decode(errors="replace")))
                text += pieces[-1][1]
                if typed and after in text:
                    os.write(read, typed.encode())
                    typed = ""
        os.close(read)
    return Seen(process.returncode, pieces)


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
