"""Output to a terminal that never ends a run: lost output is only lost."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO

from fullgraph.errors import one_line


class Tolerant:
    """A text stream that ignores all output after a write fails: a closed pipe, a full disk, a lost terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.trouble: OSError | None = None

    def write(self, text: str) -> int:
        if self.trouble is None:
            try:
                return self.stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if self.trouble is None:
            try:
                self.stream.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.trouble = error
        with suppress(OSError):  # what is left in the stream's buffer would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def tolerate_output() -> None:
    """Make this process's standard streams tolerant; a closed stream is replaced by one that discards output."""
    for number in range(3):  # otherwise the next opened file would take the closed stream's number
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name) or os.fdopen(number, "w", closefd=False)
        if not isinstance(stream, Tolerant):
            if isinstance(stream, TextIOWrapper):
                # a name may hold characters that the stream's encoding lacks
                stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, Tolerant(stream))


def output_trouble() -> OSError | None:
    """Why writing to standard output failed; empty if it did not."""
    return sys.stdout.trouble if isinstance(sys.stdout, Tolerant) else None


def note(text: object) -> None:
    """Print one line on standard error."""
    _beside(f"fullgraph: note: {one_line(text, 2000)}")


@contextmanager
def tolerated(what: object) -> Iterator[None]:
    """Create an optional file: a failure prints a note and does not end the run."""
    try:
        yield
    except Exception as error:
        note(f"{what} was not written: {type(error).__name__}: {error}")


def complain(text: object) -> None:
    """Print the one line with which a command fails."""
    _beside(f"fullgraph: error: {one_line(text, 4000)}")


def _beside(line: str) -> None:
    """Print a line on standard error; a drawing on the terminal moves below it."""
    clear = "\r\033[J" if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" else ""
    print(f"{clear}{line}", file=sys.stderr, flush=True)
