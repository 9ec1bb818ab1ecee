"""Run commands as a user would start them, check what they leave behind, and compare two runs."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from fullgraph.data import save_npz
from tests.support import random_graph, ranks_of

LIMIT_S = 120.0

# Every placement and every kind of wire, with options that keep state between epochs.
STRATEGIES: dict[str, tuple[str, ...]] = {
    "vanilla": ("--strategy", "vanilla", "--norm", "batch"),
    "none": ("--strategy", "none"),
    "pipegcn": ("--strategy", "pipegcn", "-o", "lag=2", "-o", "smooth=gf"),
    "sylvie-s": ("--strategy", "sylvie-s", "-o", "adaptive=true"),
    "sylvie-a": ("--strategy", "sylvie-a", "-o", "refresh=4", "-o", "feedback=true"),
    "varco": ("--strategy", "varco"),
    "fixed": ("--strategy", "fixed"),
    "mixgcn": ("--strategy", "mixgcn", "-o", "blocks=2"),
    "gnnpipe": ("--strategy", "gnnpipe", "--layers", "4", "-o", "freeze=4", "-o", "cut=2"),
    "gnnpipe-hybrid": ("--strategy", "gnnpipe-hybrid", "--layers", "4", "-o", "cut=2"),
    "free": ("--strategy", "free", "-o", "schedule=skip", "-o", "feedback=true"),
}
RANKS = {"gnnpipe-hybrid": 4}
SMALL = ("--hidden", "8", "--eval-every", "3", "--checkpoint-every", "4", "--threads", "1")


def small_graph(folder: Path) -> Path:
    path = folder / "g.npz"
    if not path.exists():
        save_npz(random_graph(nodes=300, arcs=1500), path)
    return path


def options(strategy: str) -> list[str]:
    return ["--parts", str(RANKS.get(strategy, 2)), *SMALL, *STRATEGIES[strategy]]


def complaints(text: str) -> list[str]:
    """Return the lines of an error stream that are not notes."""
    return [line for line in text.strip().splitlines() if not line.startswith("fullgraph: note: ")]


class Terminal:
    """A terminal of one command. All output is read until the terminal is closed."""

    def __init__(self) -> None:
        self._screen, self.end = pty.openpty()
        termios.tcsetwinsize(self._screen, (24, 100))
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closing.is_set():
            if select.select([self._screen], [], [], 0.02)[0]:
                try:
                    os.read(self._screen, 65536)
                except OSError:  # the last program in the terminal has ended
                    return

    # The shell that leads the session dies of SIGHUP, and the kernel then sends SIGHUP to all programs in the terminal.
    # The inner shell survives and records how the command ended.
    SHELL = (
        "setsid", "--ctty", "sh", "-c",
        """sh -c 'trap : HUP; "$@"; echo $? >status.part; mv status.part status' sh "$@"; :""", "sh",
    )  # fmt: skip

    def close(self) -> None:
        """Close the terminal like a closed window or a lost connection: the kernel sends SIGHUP to its programs."""
        if not self._closing.is_set():
            self._closing.set()
            self._reader.join()
            os.close(self._screen)


class Command:
    """`fullgraph ARGUMENTS` in a folder, with output to files, so that no full pipe can block it.

    session: it leads a separate process group. terminal: it runs in a separate terminal, which receives its output.
    """

    def __init__(
        self, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = (),
        session: bool = False, terminal: bool = False,
    ):  # fmt: skip
        self.started = time.monotonic()
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self.terminal = Terminal() if terminal else None
        begin = self.terminal.SHELL if self.terminal else ()
        self._status = cwd / "status" if self.terminal else None
        streams = [self.terminal.end] * 3 if self.terminal else [subprocess.DEVNULL, self._out, self._err]
        environ = {**os.environ, "TMPDIR": str(cwd), **({"TERM": "xterm"} if terminal else {}), **(env or {})}
        line = [*begin, *prefix, sys.executable, "-m", "fullgraph", *map(str, arguments)]
        self.process = subprocess.Popen(
            line, cwd=cwd, env=environ, start_new_session=session,
            stdin=streams[0], stdout=streams[1], stderr=streams[2],
        )  # fmt: skip
        if self.terminal:
            os.close(self.terminal.end)

    def finish(self, seconds: float = LIMIT_S) -> "Command":
        """Wait for its end; if it takes longer, kill it and fail."""
        if self._status is not None:
            wait_for(self._status.exists, "it did not end", seconds)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end within {seconds:g} s: {self.err}") from None
        return self

    @property
    def code(self) -> int:
        if self._status is None:
            return self.process.returncode
        return int(self._status.read_text())  # 128 + n after signal n

    @property
    def out(self) -> str:
        return self._text(self._out)

    @property
    def err(self) -> str:
        return self._text(self._err)

    @property
    def complaints(self) -> list[str]:
        return complaints(self.err)

    def ranks(self) -> dict[int, int]:
        """Return the process of each rank."""
        return ranks_of(self.process.pid)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.terminal:
            self.terminal.close()
        self._out.close()
        self._err.close()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _text(file: "tempfile._TemporaryFileWrapper[bytes]") -> str:
        return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


def finish(*arguments: object, cwd: Path, code: int = 0, **how: Any) -> tuple[str, str]:
    """Run a command to its end; return its output and its error stream."""
    with Command(*arguments, cwd=cwd, **how) as command:
        assert command.finish().code == code, (command.code, command.out, command.err)
        return command.out, command.err


def one_line(err: str) -> str:
    """Return the error line of a command that failed, its only line beside notes."""
    lines = complaints(err)
    assert len(lines) == 1, err
    assert lines[0].startswith("fullgraph: error: ")
    return lines[0]


def ranks_on(folder: Path) -> list[int]:
    """Return living ranks of a run's folder and their fork servers, started by commands beside that folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            here = Path(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            continue
        if b"fullgraph.worker" in words and here == folder.parent:
            found.append(int(pid))
    return found


def wait_for(condition: Callable[[], object], what: str, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.01)


def send(pid: int, number: int) -> bool:
    """Send a signal; return False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def epochs_done(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def leftovers(run: Path) -> list[str]:
    """Return workspaces in a run's folder, and those of its launchers beside it."""
    staged = [str(path.relative_to(run)) for path in run.rglob(".fullgraph-*")]
    return staged + [path.name for path in run.parent.glob(".fullgraph-*")]


@dataclass(frozen=True)
class Difference:
    """The differences between two finished runs; empty: they are bit-identical."""

    names: list[str]

    def __bool__(self) -> bool:
        return bool(self.names)


SAME = ("best_epoch", "train", "val", "test", "final_loss", "epochs", "bytes_per_epoch", "bytes_total")


def difference(one: Path, other: Path) -> Difference:
    """Compare results, every epoch's loss, the model and the predictions bit by bit."""
    found = []
    results = [json.loads((run / "result.json").read_text()) for run in (one, other)]
    found += [f"result.json {key}" for key in SAME if results[0][key] != results[1][key]]
    losses = [[json.loads(x)["loss"] for x in (r / "metrics.jsonl").read_text().splitlines()] for r in (one, other)]
    found += ["losses"] if losses[0] != losses[1] else []
    models = [load_file(run / "model.safetensors") for run in (one, other)]
    if models[0].keys() != models[1].keys() or any((models[0][n] != models[1][n]).any() for n in models[0]):
        found.append("model.safetensors")
    names = [{path.name for path in (run / "predictions").glob("*.npy")} for run in (one, other)]
    found += ["predictions"] if names[0] != names[1] else []
    for name in sorted(names[0] & names[1]):
        tables = [np.load(run / "predictions" / name) for run in (one, other)]
        found += [name] if not np.array_equal(*tables) else []
    return Difference(found)


def signal_name(number: int) -> str:
    return signal.Signals(number).name
