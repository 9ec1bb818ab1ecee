"""A stopped rank (SIGSTOP) is named within the timeout in any phase; one that continues in time has no effect."""

import re
import signal
import tempfile
import time
from pathlib import Path
from random import Random

from faults.command import STRATEGIES, Command, difference, epochs_done, ranks_on, send, small_graph, wait_for
from faults.kills import reference, start
from faults.trials import Campaign

TIMEOUT_S = 8.0
SLACK_S = 4.0  # for a rank's waiting time on a busy machine
END_S = 90.0  # for the command's end: the launcher waits for the lost rank's own end, and then ends all ranks


def trial(number: int, shared: Path) -> str:
    random = Random(number)
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        run = here / "run"
        small_graph(here)
        arguments = [*start(strategy), "--timeout", TIMEOUT_S]
        endless = random.random() < 0.7
        if endless:
            arguments[arguments.index("--epochs") + 1] = 10**6
        with Command(*arguments, cwd=here) as command:
            wait_for(lambda: command.ranks() or command.process.poll() is not None, "ranks")
            if endless:
                wait_for(lambda: epochs_done(run) > random.randint(1, 30), "epochs")
            else:
                time.sleep(random.uniform(0.0, 6.0))
            ranks = command.ranks()
            if not ranks:
                return "done before"
            rank = random.choice(list(ranks))
            send(ranks[rank], signal.SIGSTOP)
            if not endless:  # it continues before another rank gives it up
                time.sleep(random.uniform(0.0, 0.5 * TIMEOUT_S))
                send(ranks[rank], signal.SIGCONT)
                assert command.finish().code == 0, command.err
                differs = difference(reference(strategy, shared), run)
                assert not differs, f"{strategy}, stopped for a while: other {differs.names}"
                return "went on"
            command.finish(END_S)
            assert command.code == 1, f"exit status {command.code}: {command.err}"
            lines = command.complaints
            assert len(lines) == 1, command.err
            silent = re.search(r"waited (\d+) s.*; rank (\d+) on \S+ \(pid (\d+)\) gives no sign of life", lines[0])
            assert silent, command.err
            waited, *found = map(int, silent.groups())
            assert found == [rank, ranks[rank]], f"rank {rank} was stopped: {command.err}"
            assert waited <= TIMEOUT_S + SLACK_S, command.err
            assert not ranks_on(run)
            return "named"


CAMPAIGN = Campaign(trial, 60, "a stopped rank is named within the timeout, and one that goes on is waited for")
