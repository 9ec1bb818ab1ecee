"""How a process learns which rank it is, and meets the others."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from fullgraph.environ import MEETING, adopt_slurm, number
from fullgraph.errors import InputError, PeerLost, explain
from fullgraph.transport.board import Board, FolderBoard, StoreBoard
from fullgraph.transport.process import ProcessTransport, cause_of
from fullgraph.transport.watch import Watch


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
