"""The environment of this process: its rank, the number of ranks, and where they meet.

It imports nothing large: a launcher reads these before it knows whether it needs torch.
"""

import os
import re

from fullgraph.errors import InputError, one_line
from fullgraph.values import Range, read_option

MEETING = "FULLGRAPH_MEETING"  # the private folder in which one launcher's ranks meet
MOST_RANKS = 65535
RANGES = {  # valid numbers in the environment
    "RANK": Range(0, MOST_RANKS - 1),
    "LOCAL_RANK": Range(0, MOST_RANKS - 1),
    "SLURM_PROCID": Range(0, MOST_RANKS - 1),
    "WORLD_SIZE": Range(1, MOST_RANKS),
    "LOCAL_WORLD_SIZE": Range(1, MOST_RANKS),
    "SLURM_STEP_NUM_TASKS": Range(1, MOST_RANKS),
    "MASTER_PORT": Range(1, 65535),
}


def in_job() -> bool:
    """Whether torchrun or Slurm started this process as one rank of several."""
    adopt_slurm()
    number("RANK", 0)  # refuses a bad value now, not at the end of the run
    return number("WORLD_SIZE", 1) > 1


def number(name: str, default: int) -> int:
    """A whole number from the environment, in its range."""
    text = os.environ.get(name, str(default))
    value: int = read_option(int, f"in the environment, {name}", text)
    problem = RANGES.get(name, Range(0, 2**62)).problem(value)
    if problem:
        raise InputError(f"in the environment, {name}={one_line(text, 40)}: {problem}")
    return value


def adopt_slurm() -> None:
    """Inside a step that srun started, derive torch's variables from Slurm's; elsewhere do nothing."""
    slurm = {name.removeprefix("SLURM_"): value for name, value in os.environ.items() if name.startswith("SLURM_")}
    if "RANK" in os.environ or number("SLURM_STEP_NUM_TASKS", 1) < 2:
        return
    if "PROCID" not in slurm:
        raise InputError("inside a Slurm step, but SLURM_PROCID is not set; start with srun")
    os.environ["RANK"] = slurm["PROCID"]
    os.environ["WORLD_SIZE"] = slurm["STEP_NUM_TASKS"]
    os.environ["LOCAL_RANK"] = slurm.get("LOCALID", "0")
    tasks = re.match(r"\d+", slurm.get("STEP_TASKS_PER_NODE", "1"))
    os.environ["LOCAL_WORLD_SIZE"] = tasks[0] if tasks else "1"
    os.environ.setdefault("MASTER_ADDR", first_host(slurm.get("STEP_NODELIST", "127.0.0.1")))
    # steps of one job may run at the same time; 4,999 keeps them apart from the jobs that come next
    job, step = number("SLURM_JOB_ID", 0), number("SLURM_STEP_ID", 0)
    os.environ.setdefault("MASTER_PORT", str(20000 + (job + 4999 * step) % 20000))


def first_host(nodes: str) -> str:
    """The first name of a Slurm host list:  gpu[03-07,12],login -> gpu03."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")
