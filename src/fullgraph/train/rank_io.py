"""What passes between a rank and its launcher beside the run itself: signals, the start's seconds, last words."""

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

STARTUP = "FULLGRAPH_STARTUP"  # seconds by phase that the launcher took, and the moment when it started the ranks
REPORT = "FULLGRAPH_REPORT"  # the descriptor of the pipe on which a rank tells its launcher how it ended

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # that ask a run to stop


class Stop:
    """Set when a signal asks this rank to stop; the trainer looks at it after every epoch."""

    def __init__(self) -> None:
        self.number = 0  # of the signal; 0: none yet

    def __call__(self) -> bool:
        return self.number != 0

    def listen(self) -> None:
        """Note SIGTERM, and SIGINT and SIGHUP where no launcher takes them, instead of dying of them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _note(self, number: int, frame: object) -> None:
        self.number = number


def interrupt(number: int, frame: object) -> None:
    """What a command does when a signal comes while no ranks train."""
    raise Interrupted(f"interrupted by {signal_name(number)} before training began; nothing was kept", number)


def ignore(number: int, frame: object) -> None:
    """What a command does that is ending: another signal must not cut its last steps short."""


def started() -> Phases:
    """What the start has taken until now, by the launcher's account, and since a rank left its hands."""
    try:
        seconds, left = json.loads(os.environ.get(STARTUP, "[{}, null]"))
        spent = {**seconds, **({} if left is None else {"start": max(0.0, time.time() - left)})}
    except (ValueError, TypeError):
        spent = {}
    return Phases(spent, shown())


@dataclass(frozen=True, kw_only=True)
class ExitReport(Value):
    """How a rank ended. One that ends without them did not do its work, whatever its exit status."""

    # done: all of its work; input: the user's input; lost: a peer was gone; stopped: a signal asked for it;
    # failed: anything else
    kind: Annotated[str, OneOf("done", "input", "lost", "stopped", "failed")]
    text: str = ""
    trace: str = ""

    def tell(self) -> None:
        """Leave them for the launcher, if one listens, in a single write."""
        if REPORT in os.environ:
            with suppress(OSError, ValueError):
                os.write(int(os.environ[REPORT]), json.dumps(asdict(self)).encode()[:60000])
