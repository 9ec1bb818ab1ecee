"""How a process learns its rank and meets the other ranks.

Ranks that torchrun or Slurm started meet through a store, once per attempt. torchrun keeps one store while it restarts
ranks, and its count of restarts differs between hosts. An attempt is therefore named after its processes: each process
posts a random name, rank 0 publishes the list of names (the roster), and the meeting ends when every rank has found its
name in the roster and confirmed it. Later messages use keys that begin with the attempt's name, so that nothing of an
earlier attempt is read.
"""

import hashlib
import os
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from fullgraph.device import identity, refuse_shared
from fullgraph.environ import MEETING, adopt_slurm, number
from fullgraph.errors import InputError, PeerLost, explain
from fullgraph.transport.process import ProcessTransport, cause_of
from fullgraph.transport.watchdog import FolderBoard, HeartbeatBoard, StoreBoard, Watchdog


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
            if backend == "nccl" and device is not None:
                refuse_shared(told_to_all(store, "device", identity(device), rank, size))
            dist.init_process_group(backend, timeout=limit, rank=rank, world_size=size, store=store)
        return ProcessTransport(Watchdog(_board(size, limit, prefix), rank, size, timeout), device=device)
    except (RuntimeError, ValueError, OSError) as error:
        at = os.environ.get("MASTER_ADDR", "this machine")
        known = explain(error)
        raise known or PeerLost(
            f"rank {rank} on {os.uname().nodename} did not meet the other ranks at {at} within {timeout:g} s: "
            f"{cause_of(error)}; start all {size} ranks, check the network between the hosts, or raise --timeout"
        ) from error


def told_to_all(store: Store, what: str, text: str, rank: int, size: int) -> list[str]:
    """Tell the other ranks a text through the store; return every rank's, in the order of ranks."""
    store.set(f"fullgraph/{what}/{rank}", text)
    keys = [f"fullgraph/{what}/{other}" for other in range(size)]
    store.wait(keys)
    return [found.decode() for found in store.multi_get(keys)]


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


def backends() -> dict[str, bool]:
    """Return whether gloo and nccl are built into this torch."""
    available = dist.is_available()
    return {"gloo": available and dist.is_gloo_available(), "nccl": available and dist.is_nccl_available()}


LOOK_S = 0.05
ROSTER, MET = "fullgraph/roster", "fullgraph/met"


def meet(store: Store, rank: int, size: int, seconds: float) -> str:
    """Return the name of the attempt that all ranks take part in; RuntimeError if a rank is missing after `seconds`."""
    deadline = time.monotonic() + seconds
    mine = uuid4().hex
    store.set(_here(rank), mine)
    seen = ""
    while time.monotonic() < deadline:
        roster = _publish_roster(store, size) if rank == 0 else _text(store, ROSTER)
        if roster and roster.split(",")[rank : rank + 1] == [mine]:
            name = hashlib.sha256(roster.encode()).hexdigest()[:16]
            if name != seen:
                seen = name
                store.set(_ready(rank), name)
            if rank == 0 and all(_text(store, _ready(other)) == name for other in range(size)):
                store.set(MET, name)
            if _text(store, MET) == name:
                return name
        time.sleep(LOOK_S)
    raise RuntimeError(_missing(store, rank, size, seen))


def _publish_roster(store: Store, size: int) -> str:
    """Publish the newest process name of each rank; return "" until all ranks have come."""
    keys = [_here(rank) for rank in range(size)]
    if not store.check(keys):
        return ""
    roster = ",".join(name.decode() for name in store.multi_get(keys))
    if _text(store, ROSTER) != roster:
        store.set(ROSTER, roster)
    return roster


def _missing(store: Store, rank: int, size: int, seen: str) -> str:
    never = [other for other in range(size) if not store.check([_here(other)])]
    late = [other for other in range(size) if other not in (rank, *never) and _text(store, _ready(other)) != seen]
    who = ", ".join(map(str, never or late or [0]))
    return f"rank {who} {'never came' if never else 'is of another attempt'}"


def _text(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _here(rank: int) -> str:
    return f"fullgraph/here/{rank}"


def _ready(rank: int) -> str:
    return f"fullgraph/ready/{rank}"
