"""Messages between a rank and its launcher: signals, durations of the start, exit reports."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated

from fullgraph.display import shown
from fullgraph.errors import Interrupted, signal_name
from fullgraph.report import Phases
from fullgraph.values import OneOf, Value

STARTUP = "FULLGRAPH_STARTUP"  # seconds by phase of the launcher's start, and the time at which it started the ranks
REPORT = "FULLGRAPH_REPORT"  # the descriptor of the pipe to which a rank writes its exit report

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that stop a run


class Stop:
    """Records a signal that stops this rank; the trainer checks it after every epoch."""

    def __init__(self) -> None:
        self.number = 0  # the signal's number; 0: no signal yet

    def __call__(self) -> bool:
        return self.number != 0

    def listen(self) -> None:
        """Record SIGTERM, and without a launcher also SIGINT and SIGHUP, instead of dying."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _note(self, number: int, frame: object) -> None:
        self.number = number


def interrupt(number: int, frame: object) -> None:
    """The handler of a command while no ranks train."""
    raise Interrupted(f"interrupted by {signal_name(number)} before training began; nothing was kept", number)


def ignore(number: int, frame: object) -> None:
    """The handler of a command that is ending: another signal must not interrupt its last steps."""


def started() -> Phases:
    """Return the durations of the start: the launcher's phases, and the time since it started this rank."""
    try:
        seconds, left = json.loads(os.environ.get(STARTUP, "[{}, null]"))
        spent = {**seconds, **({} if left is None else {"start": max(0.0, time.time() - left)})}
    except (ValueError, TypeError):
        spent = {}
    return Phases(spent, shown())


@dataclass(frozen=True, kw_only=True)
class ExitReport(Value):
    """How a rank ended. A rank that ends without a report did not finish its work, whatever its exit status."""

    # done: finished; input: wrong input; lost: a peer was gone; stopped: by a signal; failed: any other reason
    kind: Annotated[str, OneOf("done", "input", "lost", "stopped", "failed")]
    text: str = ""
    trace: str = ""

    def write(self) -> None:
        """Write the report for the launcher, if there is one, in a single write."""
        if REPORT in os.environ:
            with suppress(OSError, ValueError):
                os.write(int(os.environ[REPORT]), json.dumps(asdict(self)).encode()[:60000])
