"""Nobody is let in: while a run goes on, nothing of it listens beyond loopback."""

import os
import tempfile
from pathlib import Path

from faults.command import STRATEGIES, Command, epochs_done, options, small_graph
from faults.trials import Campaign
from tests.support import children_of

LISTENING = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def listeners(pids: list[int]) -> list[tuple[str, int]]:
    """Addresses, in the kernel's own spelling, and ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(handle)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.append((address, int(port, 16)))
    return found


def trial(number: int, shared: Path) -> str:
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        small_graph(here)
        arguments = ["train", "g.npz", "--epochs", 10**6, "--out", "run", *options(strategy)]
        with Command(*arguments, cwd=here) as command:
            seen: set[tuple[str, int]] = set()
            while epochs_done(here / "run") < 3:  # from the first moment on
                assert command.process.poll() is None, command.err
                pids = [command.process.pid, *children_of(command.process.pid)]
                try:
                    seen |= set(listeners(pids))
                except OSError:  # a process ended just now
                    continue
        beyond = [(address, port) for address, port in seen if address not in LOOPBACK]
        assert not beyond, f"listens beyond loopback: {beyond}"
        assert seen, "ranks talk over loopback, so something listens there"
    return "loopback only"


CAMPAIGN = Campaign(trial, len(STRATEGIES), "nothing of a run on one machine listens beyond loopback")
