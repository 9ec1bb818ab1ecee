"""Thousands of epochs: memory, descriptors and threads of every rank must not grow."""

import os
import tempfile
from pathlib import Path

from faults.command import RANKS, STRATEGIES, Command, epochs_done, options, small_graph, wait_for
from faults.trials import Campaign

WARM, EPOCHS = 500, 3000
MORE = 100  # additional epochs, so that ranks still run during the last measurement
GROWTH_BYTES = 8 << 20


def trial(number: int, shared: Path) -> str:
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        small_graph(here)
        arguments = ["train", "g.npz", "--epochs", EPOCHS + MORE, "--out", "run", *options(strategy)]
        with Command(*arguments, cwd=here) as command:
            ranks = {}
            usage = []
            for epoch in (WARM, EPOCHS):
                wait_for(lambda e=epoch: epochs_done(here / "run") >= e, f"epoch {epoch}: {command.err}", 900)
                ranks = command.ranks()
                assert len(ranks) == RANKS.get(strategy, 2), f"epoch {epoch}: only {sorted(ranks)} are left"
                usage.append({rank: used_by(pid) for rank, pid in ranks.items()})
            assert command.finish(300).code == 0, command.err
        for rank in ranks:
            early, late = usage[0][rank], usage[1][rank]
            assert late["bytes"] - early["bytes"] < GROWTH_BYTES, f"rank {rank} grew: {early} -> {late}"
            assert late["files"] <= early["files"] + 2, f"rank {rank} opened files: {early} -> {late}"
            assert late["threads"] <= early["threads"] + 1, f"rank {rank} started threads: {early} -> {late}"
    return "flat"


def used_by(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {
        "bytes": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


CAMPAIGN = Campaign(trial, len(STRATEGIES), f"{EPOCHS:,} epochs take no more memory, files or threads than {WARM}")
