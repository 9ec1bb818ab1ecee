"""Kill a process inside a chosen system call that creates, names, syncs or removes a file; resume to the same end."""

import shutil
import tempfile
from pathlib import Path
from random import Random

from faults.command import STRATEGIES, Command, difference, leftovers, ranks_on, small_graph, wait_for
from faults.kills import ORPHANS_S, reference, start, start_or_resume
from faults.trials import Campaign

# How often a thread of a run makes each call; strace counts calls per thread.
CALLS = {"rename": 6, "renameat2": 1, "fsync": 34, "mkdir": 6, "unlink": 5, "unlinkat": 5, "fallocate": 2, "flock": 8}


def trial(number: int, shared: Path) -> str:
    assert shutil.which("strace"), "crash points need strace; install it"
    random = Random(number)
    strategy = list(STRATEGIES)[number % len(STRATEGIES)]
    call = random.choice([name for name, count in CALLS.items() for _ in range(count)])
    when = random.randint(1, CALLS[call])
    whole = reference(strategy, shared)
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        here = Path(scratch)
        run = here / "run"
        small_graph(here)
        trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
        trace += ["-e", f"inject={call}:signal=SIGKILL:when={when}"]
        with Command(*start(strategy), cwd=here, prefix=trace) as command:
            command.finish(180)
            killed = not (run / "result.json").exists()
            wait_for(lambda: not ranks_on(run), f"ranks live on: {ranks_on(run)}", ORPHANS_S)
        with Command(*start_or_resume(strategy, run), cwd=here) as command:
            if killed:
                assert command.finish().code == 0, f"{call} {when}: {command.err}"
        differs = difference(whole, run)
        assert not differs, f"{strategy}, killed in {call} number {when}: other {differs.names}"
        assert not killed or not leftovers(run), f"left behind: {leftovers(run)}"
    return f"killed in {call}" if killed else "never came so far"


CAMPAIGN = Campaign(trial, 100, "a kill inside any system call that changes files leaves them whole or not there")
