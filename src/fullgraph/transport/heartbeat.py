"""Signs of life: where every rank says what it is doing, and reads what the others are doing."""

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
    """What a rank last said of itself."""

    beat: int = 0  # rises with every sign
    moves: int = 0  # messages it has waited for and got
    waiting: bool = False  # does it stand still for a message?
    away: bool = False  # is it in a long call that lets no other thread run, such as METIS?
    doing: str = "starting"  # its last message
    host: str = field(default_factory=lambda: socket.gethostname()[:200])
    pid: int = field(default_factory=os.getpid)
    network: int = field(default_factory=network)  # those of one see one another's processes, too
    born: int = field(default_factory=lambda: born(os.getpid()))


class HeartbeatBoard(Protocol):
    """Where signs are left; it may be slow or fail when a network is cut."""

    def post(self, rank: int, sign: Heartbeat) -> None: ...
    def read(self) -> Mapping[int, Heartbeat]: ...


class FolderBoard:
    """A private folder that all ranks of one machine see: a small file a rank."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def post(self, rank: int, sign: Heartbeat) -> None:
        staged = self._path(rank).with_suffix(".new")
        staged.write_text(_text(sign))
        os.replace(staged, self._path(rank))

    def read(self) -> dict[int, Heartbeat]:
        texts = {rank: self._path(rank) for rank in range(self.size)}
        return {rank: _sign(path.read_bytes()) for rank, path in texts.items() if path.exists()}

    def _path(self, rank: int) -> Path:
        return self.folder / f"sign-{rank}"


class StoreBoard:
    """The store through which ranks on several machines met, over a connection of its own."""

    def __init__(self, store: Store, size: int) -> None:
        self.store, self.size = store, size

    def post(self, rank: int, sign: Heartbeat) -> None:
        self.store.set(_name(rank), _text(sign))

    def read(self) -> dict[int, Heartbeat]:
        there = [rank for rank in range(self.size) if self.store.check([_name(rank)])]
        texts = self.store.multi_get([_name(rank) for rank in there]) if there else []
        return {rank: _sign(text) for rank, text in zip(there, texts, strict=True)}


def _name(rank: int) -> str:
    return f"fullgraph/sign/{rank}"


def _text(sign: Heartbeat) -> str:
    return json.dumps(asdict(sign))


def _sign(text: bytes) -> Heartbeat:
    """Anything that is not a sign counts as none: a store on a network may hold what others put there."""
    try:
        return read_value(Heartbeat, json.loads(text[:MAX_BYTES]), "a sign of life")
    except (ValueError, RecursionError, InputError):
        return Heartbeat()
