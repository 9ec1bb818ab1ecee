"""Words for a person: a run never ends because nobody can read them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO

from fullgraph.errors import one_line


class Tolerant:
    """A text stream that goes quiet when it cannot be written to: a closed pipe, a full disk, a lost terminal."""

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
        with suppress(OSError):  # what is still in the stream's buffer would fail once more when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def tolerate_output() -> None:
    """Make this process's standard streams tolerant; one that is closed takes words, and loses them."""
    for number in range(3):  # or the next file that is opened would take the stream's place
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name) or os.fdopen(number, "w", closefd=False)
        if not isinstance(stream, Tolerant):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a name may hold what no encoding has
            setattr(sys, name, Tolerant(stream))


def output_trouble() -> OSError | None:
    """Why standard output could not be written to, if it could not."""
    return sys.stdout.trouble if isinstance(sys.stdout, Tolerant) else None


def note(text: object) -> None:
    """One line beside the output."""
    _beside(f"fullgraph: note: {one_line(text, 2000)}")


@contextmanager
def tolerated(what: object) -> Iterator[None]:
    """Around the making of something that a run is worth more than: a failure is a note."""
    try:
        yield
    except Exception as error:
        note(f"{what} was not written: {type(error).__name__}: {error}")


def complain(text: object) -> None:
    """The one line with which a command fails."""
    _beside(f"fullgraph: error: {one_line(text, 4000)}")


def _beside(line: str) -> None:
    """A line on standard error; on a terminal, in the place of what is drawn there, which is drawn anew below it."""
    clear = "\r\033[J" if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" else ""
    print(f"{clear}{line}", file=sys.stderr, flush=True)
