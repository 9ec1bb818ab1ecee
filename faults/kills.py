"""Kill a rank, or the launcher, at any moment; resume, perhaps kill again; the end is bit-identical."""

import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from faults.command import (
    STRATEGIES,
    Command,
    difference,
    leftovers,
    options,
    ranks_on,
    send,
    small_graph,
    wait_for,
)  # fmt: skip
from faults.trials import Campaign

EPOCHS = 18
STOPS_S = 30.0  # after a kill, the rest of a run must end within this time
ORPHANS_S = 5.0


def start(strategy: str, epochs: int = EPOCHS) -> list[object]:
    return ["train", "g.npz", "--epochs", epochs, "--out", "run", *options(strategy)]


def reference(strategy: str, shared: Path, epochs: int = EPOCHS) -> Path:
    """Return the same run without interruption; the first trial creates it."""
    final = shared / f"reference-{strategy}-{epochs}"
    if not final.exists():
        with tempfile.TemporaryDirectory(dir=shared) as scratch:
            small_graph(Path(scratch))
            with Command(*start(strategy, epochs), cwd=Path(scratch)) as run:
                assert run.finish().code == 0, run.err
            with suppress(OSError):  # another trial created it first
                os.rename(Path(scratch) / "run", final)
    return final


def start_or_resume(strategy: str, run: Path, epochs: int = EPOCHS) -> list[object]:
    return ["train", "--resume", "run"] if (run / "config.json").exists() else start(strategy, epochs)


def cut_short(command: Command, run: Path, random: Random, longest: float) -> str:
    """Kill a process at a random moment of a command; return its name."""
    if random.random() < 0.7:  # most of a short run is its start, when there is only a launcher to kill
        wait_for(lambda: command.ranks() or command.process.poll() is not None, "no rank was started")
        longest /= 4
    time.sleep(random.uniform(0.1, longest))
    victims = command.ranks()
    whom = random.choice(["launcher", *(f"rank {rank}" for rank in victims)])
    pid = command.process.pid if whom == "launcher" else victims[int(whom.split()[1])]
    if command.process.poll() is not None or not send(pid, signal.SIGKILL):
        return "nothing, it was done"
    killed = time.monotonic()
    command.finish(STOPS_S)
    if whom != "launcher" and command.code != 0:
        assert command.code == 1, f"exit status {command.code}: {command.err}"
        assert f"{whom} (pid {pid}) was ended by SIGKILL" in command.err, command.err
    wait_for(lambda: not ranks_on(run), f"ranks live on: {ranks_on(run)}", ORPHANS_S + killed - time.monotonic() + 1)
    return whom.split()[0]


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    whole = reference(strategy, shared)
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        run = here / "run"
        small_graph(here)
        killed = []
        for _ in range(random.choice([1, 1, 2])):
            with Command(*start_or_resume(strategy, run), cwd=here) as command:
                killed.append(cut_short(command, run, random, longest=6.0))
        with Command(*start_or_resume(strategy, run), cwd=here) as command:
            assert command.finish().code == 0, command.err
        differs = difference(whole, run)
        assert not differs, f"{strategy}, killed {killed}: other {differs.names}"
        assert not leftovers(run), f"left behind: {leftovers(run)}"
    return f"killed {' and '.join(killed)}"


CAMPAIGN = Campaign(trial, 300, "a kill at any moment costs nothing: resumed runs are the same to the bit")
