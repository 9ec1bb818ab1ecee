"""Ranks with little processor time, and a checkpoint in every epoch: a run takes longer, and ends bit-identical."""

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

from faults.command import STRATEGIES, Command, difference, leftovers, send, small_graph
from faults.kills import reference, start
from faults.trials import Campaign

RUNS = 10  # at the same time
BUSY = 20  # other processes that never rest
SHORTEST_S, LONGEST_S = 0.04, 0.12  # durations of a rank's stops
LIMIT_S = 900.0


def trial(number: int, shared: Path, runs: int = RUNS) -> str:
    numbers = range(number * runs, (number + 1) * runs)
    for one in numbers:
        reference(strategy_of(one), shared)
    with busy(BUSY), ThreadPoolExecutor(runs) as pool:
        list(pool.map(lambda one: run(one, shared), numbers))
    return f"{runs} finished and identical"


def strategy_of(number: int) -> str:
    return list(STRATEGIES)[number % len(STRATEGIES)]


def run(number: int, shared: Path) -> None:
    random, strategy = Random(number), strategy_of(number)
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        small_graph(here)
        with Command(*start(strategy), "--checkpoint-every", 1, cwd=here) as command:
            deadline, stops = time.monotonic() + LIMIT_S, 0
            while command.process.poll() is None:
                assert time.monotonic() < deadline, f"it did not end within {LIMIT_S:g} s: {command.err}"
                stops += stop_for_a_while(list(command.ranks().values()), random)
                time.sleep(random.uniform(0.0, 0.1))
            assert command.code == 0, f"{strategy}, {stops} stops: {command.err}"
        differs = difference(reference(strategy, shared), here / "run")
        assert not differs, f"{strategy}, {stops} stops: other {differs.names}"
        assert not leftovers(here / "run"), f"left behind: {leftovers(here / 'run')}"


def stop_for_a_while(ranks: list[int], random: Random) -> bool:
    victim = random.choice(ranks) if ranks else 0
    if not victim or not send(victim, signal.SIGSTOP):
        return False
    time.sleep(random.uniform(SHORTEST_S, LONGEST_S))
    return send(victim, signal.SIGCONT)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the given number of processes busy while the block runs."""
    running = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


CAMPAIGN = Campaign(
    trial,
    200 // RUNS,
    "ranks stopped for 40 to 120 ms beside 20 busy processes: every one of 10 runs finishes, the same to the bit",
    jobs=1,
)
