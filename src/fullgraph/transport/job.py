"""How a process learns which rank it is, and meets the others."""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from fullgraph.errors import InputError, explain, one_line
from fullgraph.transport.base import PeerLost
from fullgraph.transport.board import Board, FolderBoard, StoreBoard
from fullgraph.transport.process import ProcessTransport, cause_of
from fullgraph.transport.watch import Watch
from fullgraph.values import Range, read_option

MEETING = "FULLGRAPH_MEETING"  # the private folder in which the ranks that one launcher started meet
MOST_RANKS = 65535
RANGES = {  # of numbers in the environment
    "RANK": Range(0, MOST_RANKS - 1),
    "LOCAL_RANK": Range(0, MOST_RANKS - 1),
    "SLURM_PROCID": Range(0, MOST_RANKS - 1),
    "WORLD_SIZE": Range(1, MOST_RANKS),
    "LOCAL_WORLD_SIZE": Range(1, MOST_RANKS),
    "SLURM_STEP_NUM_TASKS": Range(1, MOST_RANKS),
    "MASTER_PORT": Range(1, 65535),
}


def join(*, backend: str = "gloo", device: torch.device | None = None, timeout: float = 60.0) -> ProcessTransport:
    """Join the job that a launcher, torchrun or Slurm describes in the environment."""
    adopt_slurm()
    needed = ["RANK", "WORLD_SIZE", *([] if MEETING in os.environ else ["MASTER_ADDR", "MASTER_PORT"])]
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise InputError(f"not inside a job: {', '.join(missing)} not set; start with torchrun or `fullgraph train`")
    rank, size = number("RANK", 0), number("WORLD_SIZE", 1)
    number("MASTER_PORT", 1)
    if not 0 <= rank < size:
        raise InputError(f"RANK={rank} of WORLD_SIZE={size}: ranks run from 0 to {size - 1}")
    limit = timedelta(seconds=timeout)
    try:
        if not dist.is_initialized():
            store = FileStore(str(Path(os.environ[MEETING]) / "store"), size) if MEETING in os.environ else None
            where: dict[str, Any] = {"init_method": "env://"} if store is None else {"store": store}
            dist.init_process_group(backend, timeout=limit, rank=rank, world_size=size, **where)
        return ProcessTransport(Watch(_board(size, limit), rank, size, timeout), device=device)
    except (RuntimeError, ValueError, OSError) as error:
        at = os.environ.get("MASTER_ADDR", "this machine")
        known = explain(error)
        raise known or PeerLost(
            f"rank {rank} on {os.uname().nodename} did not meet the other ranks at {at} within {timeout:g} s: "
            f"{cause_of(error)}; start all {size} ranks, check the network between the hosts, or raise --timeout"
        ) from error


def _board(size: int, limit: timedelta) -> Board:
    if MEETING in os.environ:
        return FolderBoard(Path(os.environ[MEETING]), size)
    # A connection of its own: on the one that ranks met through, a long wait would hold up the signs of life.
    host, port = os.environ["MASTER_ADDR"], number("MASTER_PORT", 0)
    store = TCPStore(host, port, None, False, limit)
    return StoreBoard(PrefixStore(f"again {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store), size)


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
    os.environ.setdefault("MASTER_PORT", str(20000 + number("SLURM_JOB_ID", 0) % 20000))


def first_host(nodes: str) -> str:
    """The first name of a Slurm host list:  gpu[03-07,12],login -> gpu03."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")
