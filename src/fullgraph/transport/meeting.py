"""Ranks that torchrun or Slurm started meet through a store, once per attempt.

torchrun keeps one store while it restarts ranks, and its count of restarts differs between hosts. An attempt is
therefore named after its processes: each process posts a random name, rank 0 publishes the list of names (the roster),
and the meeting ends when every rank has found its name in the roster and confirmed it. Later messages use keys that
begin with the attempt's name, so that nothing of an earlier attempt is read.
"""

import hashlib
import time
from uuid import uuid4

from torch.distributed.distributed_c10d import Store

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
