"""How a process learns its rank and meets the other ranks."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from fullgraph.environ import MEETING, adopt_slurm, number
from fullgraph.errors import InputError, PeerLost, explain
from fullgraph.transport.heartbeat import FolderBoard, HeartbeatBoard, StoreBoard
from fullgraph.transport.meeting import MET, meet
from fullgraph.transport.process import ProcessTransport, cause_of
from fullgraph.transport.watchdog import Watchdog


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
    limit, prefix = timedelta(seconds=timeout), ""
    try:
        if not dist.is_initialized():
            if MEETING in os.environ:
                store: Store = FileStore(str(Path(os.environ[MEETING]) / "store"), size)
            else:
                lasting, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
                # When ranks are restarted, the others may first have to notice that one died.
                again = lasting.check([MET])
                prefix = f"fullgraph/{meet(lasting, rank, size, 2 * timeout if again else timeout)}"
                store = PrefixStore(prefix, lasting)
            dist.init_process_group(backend, timeout=limit, rank=rank, world_size=size, store=store)
        return ProcessTransport(Watchdog(_board(size, limit, prefix), rank, size, timeout), device=device)
    except (RuntimeError, ValueError, OSError) as error:
        at = os.environ.get("MASTER_ADDR", "this machine")
        known = explain(error)
        raise known or PeerLost(
            f"rank {rank} on {os.uname().nodename} did not meet the other ranks at {at} within {timeout:g} s: "
            f"{cause_of(error)}; start all {size} ranks, check the network between the hosts, or raise --timeout"
        ) from error


def _board(size: int, limit: timedelta, prefix: str) -> HeartbeatBoard:
    if MEETING in os.environ:
        return FolderBoard(Path(os.environ[MEETING]), size)
    # A separate connection: on the connection that ranks met through, a long wait would delay heartbeats.
    return StoreBoard(PrefixStore(f"{prefix}/signs", _lasting_store(limit)), size)


def _lasting_store(limit: timedelta) -> Store:
    """Connect to the job's store, which outlives ranks that torchrun restarts."""
    return TCPStore(os.environ["MASTER_ADDR"], number("MASTER_PORT", 0), None, False, limit)


BEGUN = "fullgraph/begun"
ASK_S = 30.0


def note_begun(run: str) -> None:
    """Record that this job began a run, for ranks that torchrun restarts."""
    _lasting_store(timedelta(seconds=ASK_S)).set(f"{BEGUN}/{run}", "")


def begun(run: str) -> bool:
    """Return whether this job began that run before its ranks were restarted."""
    return bool(_lasting_store(timedelta(seconds=ASK_S)).check([f"{BEGUN}/{run}"]))
