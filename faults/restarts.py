"""--max-restarts: a rank is killed repeatedly, and the run still reaches its end, bit-identical."""

import random as randomness
import signal
import tempfile
import time
from pathlib import Path

from faults.command import Command, difference, options, send, small_graph
from faults.trials import Campaign

EPOCHS = 300
EVERY_S = 20.0  # mean seconds between kills


def trial(number: int, shared: Path) -> str:
    random = randomness.Random(number)
    strategy = ["vanilla", "pipegcn", "sylvie-a", "gnnpipe"][number % 4]
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        small_graph(here)
        slow = ["--eval-every", 1, "--checkpoint-every", 1]  # so that 300 epochs take minutes, not seconds
        both = ["train", "g.npz", "--epochs", EPOCHS, *options(strategy), *slow]
        with Command(*both, "--out", "whole", cwd=here) as whole:
            assert whole.finish(600).code == 0, whole.err
        with Command(*both, "--out", "run", "--max-restarts", 1000, cwd=here) as command:
            kills, deadline = 0, time.monotonic() + 1800
            while command.process.poll() is None:
                assert time.monotonic() < deadline, f"not done after {kills} kills"
                time.sleep(min(60.0, random.expovariate(1 / EVERY_S)))
                ranks = command.ranks()
                if ranks and command.process.poll() is None:
                    kills += send(random.choice(list(ranks.values())), signal.SIGKILL)
            assert command.code == 0, command.err
        differs = difference(here / "whole", here / "run")
        assert not differs, f"{strategy}, {kills} kills: other {differs.names}"
    return f"{strategy}: {kills} kills"


CAMPAIGN = Campaign(trial, 4, "--max-restarts finishes 300 epochs with a kill every 20 s, the same to the bit", jobs=1)
