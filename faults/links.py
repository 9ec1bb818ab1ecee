"""Links between two emulated hosts are cut, lose one way, flap or reset their connections, in every phase of a run.

The run goes on, or both hosts stop within the timeout with one line that names host and rank; resumed, it is the same.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from faults.command import STRATEGIES, complaints, difference, epochs_done, options, small_graph, wait_for
from faults.kills import reference
from faults.resets import reset_connections
from faults.trials import Campaign
from fullgraph.lab.bench.hosts import Hosts

EPOCHS = 60
TIMEOUT_S = 8.0
SLACK_S = 12.0  # what torch's own connections may take on top, and busy machines
START_S = 20.0  # in which a command has read its libraries, and begins to wait for others
TWO_RANKS = [name for name in STRATEGIES if name != "gnnpipe-hybrid"]


class Rank:
    """One rank on a host, and what it says."""

    def __init__(self, hosts: Hosts, host: int, arguments: list[object], cwd: Path, stack: ExitStack) -> None:
        self.host = host
        self.err = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
        self.process = hosts.rank(
            host, ["-m", "fullgraph", *arguments], cwd=cwd, stdout=subprocess.DEVNULL, stderr=self.err,
            environ={"TMPDIR": str(cwd)},
        )  # fmt: skip
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    @property
    def said(self) -> str:
        return os.pread(self.err.fileno(), 1 << 20, 0).decode(errors="replace")


def cut(hosts: Hosts, random: Random) -> None:
    hosts.plug(random.randrange(2), up=False)


def one_way(hosts: Hosts, random: Random) -> None:
    source = random.randrange(2)
    hosts.one_way(source, 1 - source, lost=True)


def flap(hosts: Hosts, random: Random) -> None:
    """Down and up again a few times, each time for less than the timeout."""
    for _ in range(random.randint(1, 3)):
        host = random.randrange(2)
        hosts.plug(host, up=False)
        time.sleep(random.uniform(0.1, 0.3 * TIMEOUT_S))
        hosts.plug(host, up=True)
        time.sleep(random.uniform(0.1, 1.0))


def reset(hosts: Hosts, random: Random) -> None:
    """Every connection that is used within a second is closed, as by a firewall that forgets."""
    reset_connections(hosts.ports[random.randrange(2)], 1.0)


FAULTS: dict[str, Callable[[Hosts, Random], None]] = {"cut": cut, "one way": one_way, "flap": flap, "reset": reset}


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    kind = list(FAULTS)[number % len(FAULTS)]
    strategy = TWO_RANKS[number // len(FAULTS) % len(TWO_RANKS)]
    whole = reference(strategy, shared, EPOCHS)
    with ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared)))
        hosts = stack.enter_context(Hosts(2))
        small_graph(here)
        run = here / "run"
        start = ["train", "g.npz", "--epochs", EPOCHS, "--out", "run", "--timeout", TIMEOUT_S, *options(strategy)]
        ranks = [Rank(hosts, host, start, here, stack) for host in range(2)]
        phase = _moment(ranks, run, random)
        FAULTS[kind](hosts, random)
        slack = SLACK_S + (START_S if phase == "starting" else 0.0)
        told = _stopped(ranks, slack) if kind in ("cut", "one way") else _went_on_or_stopped(ranks, slack)
        for rank in ranks:
            rank.process.wait(30)
        with Hosts(2) as healed, ExitStack() as again:
            if not (run / "result.json").exists():
                arguments = ["train", "--resume", "run"] if (run / "config.json").exists() else start
                resumed = [Rank(healed, host, arguments, here, again) for host in range(2)]
                for rank in resumed:
                    rank.process.wait(120)
                    assert rank.process.returncode == 0, rank.said
        differs = difference(whole, run)
        assert not differs, f"{strategy}, {kind} while {phase}: other {differs.names}"
    return f"{kind}: {told}"


def _moment(ranks: list[Rank], run: Path, random: Random) -> str:
    """Wait for a random moment; the phase it falls in."""
    if random.random() < 0.4:
        time.sleep(random.uniform(0.0, 9.0))
        return "starting" if not epochs_done(run) else "training"
    epoch = random.randint(1, EPOCHS - 1)
    over = lambda: epochs_done(run) >= epoch or any(rank.process.poll() is not None for rank in ranks)  # noqa: E731
    wait_for(over, f"epoch {epoch}: {ranks[0].said} {ranks[1].said}")
    return f"epoch {epoch}"


def _stopped(ranks: list[Rank], slack_s: float) -> str:
    """Both ranks are done, or stop within the timeout and name themselves and the other."""
    deadline = time.monotonic() + TIMEOUT_S + slack_s
    for rank in ranks:
        try:
            rank.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"host {rank.host} still runs: {rank.said}") from None
    if all(rank.process.returncode == 0 for rank in ranks):
        return "done before"
    for rank in ranks:
        if rank.process.returncode == 0:
            continue  # it was done, and only the other one was not
        assert rank.process.returncode == 1, f"host {rank.host} exited {rank.process.returncode}: {rank.said}"
        lines = [line for line in complaints(rank.said) if " is slow: " not in line]
        assert len(lines) == 1, f"host {rank.host}: {rank.said}"
        assert lines[0].startswith(f"fullgraph: error: rank {rank.host} on host{rank.host} "), rank.said
        other = 1 - rank.host
        named = rf"rank {other}\b|at 10\.77\.0\.10|10\.77\.0\.1{other}|lost touch"
        assert re.search(named, lines[0]), f"names nobody else: {rank.said}"
    return "both stopped"


def _went_on_or_stopped(ranks: list[Rank], slack_s: float) -> str:
    deadline = time.monotonic() + 90
    while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline:
        if any(rank.process.returncode for rank in ranks):
            return _stopped(ranks, slack_s)
        time.sleep(0.05)
    assert all(rank.process.poll() is not None for rank in ranks), f"{ranks[0].said}\n{ranks[1].said}"
    return "went on" if all(rank.process.returncode == 0 for rank in ranks) else _stopped(ranks, slack_s)


CAMPAIGN = Campaign(trial, 80, "a bad link is survived, or named on both hosts within the timeout", jobs=1)
