"""Heartbeats: every rank posts what it is doing and reads what the others are doing."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from torch.distributed.distributed_c10d import Store

from fullgraph.errors import InputError
from fullgraph.proc import born, network
from fullgraph.values import Value, read_value

MAX_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Value):
    """The state that a rank last posted."""

    beat: int = 0  # rises with every heartbeat
    moves: int = 0  # messages that the rank has waited for and received
    waiting: bool = False  # True while the rank waits for a message
    away: bool = False  # True during a long call that lets no other thread run, such as METIS
    doing: str = "starting"  # the rank's last message
    host: str = field(default_factory=lambda: socket.gethostname()[:200])
    pid: int = field(default_factory=os.getpid)
    network: int = field(default_factory=network)  # processes with the same number can see one another
    born: int = field(default_factory=lambda: born(os.getpid()))


class HeartbeatBoard(Protocol):
    """The place where ranks post heartbeats; it may be slow or fail when a network is cut."""

    def post(self, rank: int, heartbeat: Heartbeat) -> None: ...
    def read(self) -> Mapping[int, Heartbeat]: ...


class FolderBoard:
    """A private folder that all ranks of one machine share, with one small file per rank."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def post(self, rank: int, heartbeat: Heartbeat) -> None:
        staged = self._path(rank).with_suffix(".new")
        staged.write_text(_text(heartbeat))
        os.replace(staged, self._path(rank))

    def read(self) -> dict[int, Heartbeat]:
        texts = {rank: self._path(rank) for rank in range(self.size)}
        return {rank: _heartbeat(path.read_bytes()) for rank, path in texts.items() if path.exists()}

    def _path(self, rank: int) -> Path:
        return self.folder / f"heartbeat-{rank}"


class StoreBoard:
    """The store through which ranks on several machines met, over a separate connection."""

    def __init__(self, store: Store, size: int) -> None:
        self.store, self.size = store, size

    def post(self, rank: int, heartbeat: Heartbeat) -> None:
        self.store.set(_name(rank), _text(heartbeat))

    def read(self) -> dict[int, Heartbeat]:
        ranks = [rank for rank in range(self.size) if self.store.check([_name(rank)])]
        texts = self.store.multi_get([_name(rank) for rank in ranks]) if ranks else []
        return {rank: _heartbeat(text) for rank, text in zip(ranks, texts, strict=True)}


def _name(rank: int) -> str:
    return f"fullgraph/heartbeat/{rank}"


def _text(heartbeat: Heartbeat) -> str:
    return json.dumps(asdict(heartbeat))


def _heartbeat(text: bytes) -> Heartbeat:
    """Parse a heartbeat; anything else counts as a new rank's: other programs may write to a store on a network."""
    try:
        return read_value(Heartbeat, json.loads(text[:MAX_BYTES]), "a heartbeat")
    except (ValueError, RecursionError, InputError):
        return Heartbeat()
