"""Jobs of a real Slurm: stopped before their time limit and requeued, arrays, dying tasks and nodes, logs, GPUs.

Every job runs the documented script or a documented command.
"""

import os
import random as randomness
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from faults.command import SMALL, Command, difference, epochs_done, small_graph, wait_for
from faults.slurm_cluster import Cluster, cluster, lacks
from faults.trials import Campaign

SCRIPT = Path(__file__).parents[1] / "examples" / "slurm.sh"


TRAIN = ["--strategy", "pipegcn", "-o", "smooth=gf", *SMALL]
PLACE = ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=0"]
SLOW = """
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Slow:
    seconds: float = 0.4

    def __call__(self, record):
        time.sleep(self.seconds)
"""


def whole_run(scratch: Path, shared: Path, epochs: int) -> Path:
    """The folder of the same run without Slurm; trials share it."""
    whole = shared / f"slurm-whole-{epochs}"
    if not (whole / "result.json").exists():
        shutil.rmtree(whole, ignore_errors=True)
        options = ["--parts", 4, "--out", whole, *TRAIN, "--epochs", epochs]
        with Command("train", "g.npz", *options, cwd=scratch) as command:
            assert command.finish(400).code == 0, command.err
    return whole


def requeued(slurm: Cluster, scratch: Path, *, at: int = 0, shared: Path | None = None) -> str:
    """Run the documented script; SIGTERM after epoch `at`, or at its time limit for 0; compare with a whole run."""
    small_graph(scratch)
    (scratch / "slow.py").write_text(SLOW)
    run, log = scratch / "run", scratch / "log"
    times, seconds = (["--time=10"], 0.05) if at else (["--time=2", "--signal=TERM@30"], 0.6)
    epochs = 60 if at else 150
    options = [*TRAIN, "--epochs", epochs]
    slow = ["--callback", f"slow.py:Slow,seconds={seconds}"]
    job = slurm.submit(scratch, *PLACE, *times, f"--output={log}", SCRIPT, "g.npz", "run", *options, *slow)
    if at:
        wait_for(lambda: epochs_done(run) >= at, f"epoch {at}", 250)
        slurm.run("scancel", "--signal=TERM", job)  # as at the time limit: to the tasks, not to the script
    wait_for(lambda: int(slurm.about(job).get("Restarts", 0)) > 0, "it was not requeued", 250)
    # Slurm itself waits two minutes. Started in the second in which it ended, a job is refused: "credential revoked".
    wait_for(lambda: slurm.about(job).get("JobState") == "PENDING", "it does not wait", 100)
    done = epochs_done(run)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=10", "StartTime=now+5")
    slurm.wait_for_end(job, "COMPLETED", log)
    assert 0 < done < epochs, f"stopped after epoch {done}"
    differs = difference(whole_run(scratch, shared or scratch, epochs), run)
    assert not differs, f"requeued: other {differs.names}"
    return "requeued and identical"


def array(slurm: Cluster, scratch: Path) -> str:
    """Two jobs of an array at the same time, on one node: each has its own ranks, port and folder."""
    small_graph(scratch)
    each = (
        "srun fullgraph train g.npz --epochs 3 --hidden 4 --seed $SLURM_ARRAY_TASK_ID --out seed-$SLURM_ARRAY_TASK_ID"
    )
    job = slurm.submit(scratch, "--array=1-2", "--ntasks=2", "--nodelist=n1", f"--wrap={each}")
    for task in (1, 2):
        slurm.wait_for_end(f"{job}_{task}", "COMPLETED", scratch / f"slurm-{job}_{task}.out")
    differs = difference(scratch / "seed-1", scratch / "seed-2")
    assert "losses" in differs.names, "two seeds, one result"
    return "two jobs of an array"


def dead_task(slurm: Cluster, scratch: Path) -> str:
    """Kill a rank: the others name it, the job fails, and the same script goes on from the newest checkpoint."""
    small_graph(scratch)
    (scratch / "slow.py").write_text(SLOW)
    options = [*TRAIN, "--epochs", 60, "--callback", "slow.py:Slow,seconds=0.1", "--timeout", 20]
    submit = lambda: slurm.submit(scratch, *PLACE, f"--output={scratch}/log", SCRIPT, "g.npz", "run", *options)  # noqa: E731
    job = submit()
    log = lambda: (scratch / "log").read_text() if (scratch / "log").exists() else ""  # noqa: E731
    wait_for(lambda: epochs_done(scratch / "run") >= 12, f"epoch 12: {log()}")
    os.kill(slurm.tasks(job)[2], signal.SIGKILL)
    slurm.wait_for_end(job, "FAILED", scratch / "log")
    assert "lost" in log(), log()
    assert "from rank 2" in log(), log()
    slurm.wait_for_end(submit(), "COMPLETED", scratch / "log")
    assert epochs_done(scratch / "run") == 60
    return "a dead task was named, and the job went on"


def dead_node(slurm: Cluster, scratch: Path) -> str:
    """End a node: the ranks of the other name its ranks; on one node, two ranks continue the run of four."""
    small_graph(scratch)
    (scratch / "slow.py").write_text(SLOW)
    options = [*SMALL, "--epochs", 40, "--dtype", "float64", "--timeout", 20]
    slow = ["--callback", "slow.py:Slow,seconds=0.1"]
    log = lambda: (scratch / "log").read_text() if (scratch / "log").exists() else ""  # noqa: E731
    job = slurm.submit(
        scratch, *PLACE, "--no-requeue", f"--output={scratch}/log", SCRIPT, "g.npz", "run", *options, *slow
    )
    wait_for(lambda: epochs_done(scratch / "run") >= 12, f"epoch 12: {log()}")
    slurm.kill_node("n2", job)
    wait_for(lambda: "lost" in log(), f"nobody noticed: {log()}", 60)
    slurm.run("scancel", job)
    where = ["--nodes=1", "--nodelist=n1", "--ntasks-per-node=2", "--gpus-per-task=0"]
    again = slurm.submit(scratch, *where, f"--output={scratch}/log", SCRIPT, "g.npz", "run")
    slurm.wait_for_end(again, "COMPLETED", scratch / "log")
    assert "2 ranks continue the run of 4" in log(), log()
    with Command("train", "g.npz", "--parts", 4, "--out", "whole", *options, cwd=scratch) as whole:
        assert whole.finish(400).code == 0, whole.err
    tables = [np.load(scratch / run / "predictions" / "probabilities.npy") for run in ("run", "whole")]
    np.testing.assert_allclose(*tables, atol=1e-9)
    return "a dead node was named, and two ranks went on"


SHOWN = """
import os, types, torch
from fullgraph import device
from fullgraph.environ import in_job
count = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
kind = torch.device("cuda")
torch.accelerator = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: count, current_accelerator=lambda: kind)
assert in_job()
local, seen, node = (os.environ[name] for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME"))
print("device", local, device.device_of("cuda"), "of", seen, "on", node)
"""


def logs_and_gpus(slurm: Cluster, scratch: Path) -> str:
    """A log for each rank; each task takes a GPU of its own, whether it sees that one alone or all of its node."""
    (scratch / "shown.py").write_text(SHOWN)
    own = {f"device {rank % 2} cuda:0 of {rank % 2} on n{1 + rank // 2}" for rank in range(4)}
    for how, wanted in (("--gpus-per-task=1", own), ("--gpus-per-node=2", None)):
        done = slurm.run(
            "srun", "--nodes=2", "--ntasks-per-node=2", how, "--output=log-%t", sys.executable, "shown.py", cwd=scratch
        )
        assert "error" not in done, done
        told = [(scratch / f"log-{rank}").read_text().strip() for rank in range(4)]
        if wanted is None:
            assert [text.split()[2] for text in told] == ["cuda:0", "cuda:1"] * 2, told
        else:
            assert set(told) == wanted, told
    return "a log and a GPU for each rank"


KINDS: list[Callable[[Cluster, Path], str]] = [array, dead_task, dead_node, logs_and_gpus]
REQUEUED = 10


def trial(number: int, shared: Path) -> str:
    """Ten jobs are stopped, every fifth by its time limit; then one trial of each other kind."""
    scratch = Path(tempfile.mkdtemp(dir=shared))
    trouble = lacks()
    assert not trouble, trouble
    try:
        with cluster() as slurm:
            if number >= REQUEUED:
                return KINDS[number % len(KINDS)](slurm, scratch)
            at = randomness.Random(number).randint(1, 40) if number % 5 else 0
            return requeued(slurm, scratch, at=at, shared=shared)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


CAMPAIGN = Campaign(
    trial, REQUEUED + len(KINDS), "a job that Slurm stops and requeues ends like one that it never stopped", jobs=1
)
