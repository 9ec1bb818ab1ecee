"""SIGTERM or SIGINT at any moment: a checkpoint of it, one line that says so, and a resume that is identical."""

import re
import signal
import tempfile
import time
from pathlib import Path
from random import Random

from faults.command import (
    STRATEGIES,
    Command,
    difference,
    epochs_done,
    leftovers,
    ranks_on,
    signal_name,
    small_graph,
    wait_for,
)  # fmt: skip
from faults.kills import reference, start, start_or_resume
from faults.trials import Campaign

EPOCHS = 120
LEAVES_S = 30.0


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    whole = reference(strategy, shared, EPOCHS)
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        run = here / "run"
        small_graph(here)
        asked = random.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT])
        with Command(*start(strategy, EPOCHS), cwd=here) as command:
            if random.random() < 0.8:
                epoch = random.randint(0, EPOCHS)
                wait_for(lambda: epochs_done(run) >= epoch or command.process.poll() is not None, f"epoch {epoch}")
                time.sleep(random.uniform(0, 0.05))
            else:
                time.sleep(random.uniform(0.1, 9.0))
            command.process.send_signal(asked)
            command.finish(LEAVES_S)
            told = outcome(command, asked, run)
            assert not ranks_on(run), f"ranks live on: {ranks_on(run)}"
        with Command(*start_or_resume(strategy, run, EPOCHS), cwd=here) as command:
            if not (run / "result.json").exists():
                assert command.finish().code == 0, command.err
        differs = difference(whole, run)
        assert not differs, f"{strategy}, {told}: other {differs.names}"
        assert not leftovers(run), f"left behind: {leftovers(run)}"
    return told


def outcome(command: Command, asked: signal.Signals, run: Path) -> str:
    """How a run took the signal; every way must be one of the documented ones."""
    if command.code == 0:
        return "done before"
    if command.code == -asked:
        assert not run.exists() or not (run / "config.json").exists(), "died of the signal while it trained"
        return "died while it started"
    assert command.code == 128 + asked, f"exit status {command.code}: {command.err}"
    lines = command.complaints
    assert len(lines) == 1, command.err
    assert signal_name(asked) in lines[0] or "interrupted" in lines[0], command.err
    if "before training began" in lines[0]:
        assert not run.exists(), "it says that nothing was kept"
        return "nothing kept"
    assert "to go on: fullgraph train --resume" in lines[0], command.err
    found = re.search(r"a checkpoint of epoch (\d+) was written", lines[0])
    if found is None:
        assert "no checkpoint was added" in lines[0], command.err
        return "before the first epoch"
    assert (run / "checkpoints" / f"epoch-{int(found[1]):08d}").is_dir(), f"no checkpoint of epoch {found[1]}"
    return "checkpoint written"


CAMPAIGN = Campaign(trial, 50, "SIGTERM or SIGINT at any moment leaves a checkpoint of it; resumed runs are the same")
