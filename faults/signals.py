"""A signal at any moment to any process: a checkpoint, the documented exit status, and a bit-identical resume.

launcher    SIGTERM, SIGINT or SIGHUP to the command only
rank        SIGTERM to a rank stops all ranks; SIGINT and SIGHUP matter only to the launcher, so the run continues
group       to the command and all its processes, twice, as `timeout` and closed shells do
terminal    the terminal of the command is closed
"""

import os
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
    send,
    signal_name,
    small_graph,
    wait_for,
)  # fmt: skip
from faults.kills import reference, start, start_or_resume
from faults.trials import Campaign

EPOCHS = 120
LEAVES_S = 60.0
TARGETS = ("launcher", "rank", "group", "terminal")


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    target = TARGETS[number % len(TARGETS)]
    whole = reference(strategy, shared, EPOCHS)
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        run = here / "run"
        small_graph(here)
        asked = random.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        asked = signal.SIGHUP if target == "terminal" else asked
        alone = {"session": target == "group", "terminal": target == "terminal"}
        with Command(*start(strategy, EPOCHS), cwd=here, **alone) as command:
            if random.random() < 0.8:
                epoch = random.randint(0, EPOCHS)
                wait_for(lambda: epochs_done(run) >= epoch or command.process.poll() is not None, f"epoch {epoch}")
                time.sleep(random.uniform(0, 0.05))
            else:
                time.sleep(random.uniform(0.1, 9.0))
            heard = ask(command, target, asked, random)
            command.finish(LEAVES_S if heard else 240)
            told = outcome(command, asked, run) if heard else "went on"
            assert heard or command.code == 0, f"exit status {command.code}: {command.err}"
            assert not ranks_on(run), f"ranks live on: {ranks_on(run)}"
        (here / "status").unlink(missing_ok=True)
        with Command(*start_or_resume(strategy, run, EPOCHS), cwd=here) as command:
            if not (run / "result.json").exists():
                assert command.finish().code == 0, command.err
        differs = difference(whole, run)
        assert not differs, f"{strategy}, {target}, {signal_name(asked)}, {told}: other {differs.names}"
        assert not leftovers(run), f"left behind: {leftovers(run)}"
    return f"{target}: {told}"


def ask(command: Command, target: str, asked: signal.Signals, random: Random) -> bool:
    """Send the signal; return whether it must stop the run."""
    if command.terminal:
        command.terminal.close()
    elif target == "launcher":
        command.process.send_signal(asked)
    elif target == "group":
        for _ in range(2):
            if command.process.poll() is None:
                os.killpg(command.process.pid, asked)
    else:
        wait_for(lambda: command.ranks() or command.process.poll() is not None, "ranks")
        ranks = list(command.ranks().values())
        return bool(ranks) and send(random.choice(ranks), asked) and asked == signal.SIGTERM
    return True


def outcome(command: Command, asked: signal.Signals, run: Path) -> str:
    """Return how the run reacted to the signal; only documented reactions are allowed."""
    if command.code == 0:
        return "done before"
    if command.code == -asked:
        assert not run.exists() or not (run / "config.json").exists(), "died of the signal while it trained"
        return "died while it started"
    assert command.code == 128 + asked, f"exit status {command.code}: {command.err}"
    if command.terminal:  # its output cannot be read
        return _kept(run)
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


def _kept(run: Path) -> str:
    if not run.exists():
        return "nothing kept"
    epoch = epochs_done(run)
    if (run / "checkpoints" / f"epoch-{epoch:08d}").is_dir():
        return "checkpoint written"
    assert not epoch, f"no checkpoint of epoch {epoch}"
    return "before the first epoch"


CAMPAIGN = Campaign(
    trial, 50, "a signal to anyone leaves a checkpoint and the promised status; resumed runs are the same"
)
