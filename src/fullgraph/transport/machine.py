"""Tensors that all ranks of one machine share in memory."""

import json
import mmap
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.proc import machine
from fullgraph.transport.base import Transport
from fullgraph.transport.gather import gather_rows
from fullgraph.transport.key import Key

ALIGN = 64


class Bundle(NamedTuple):
    """Tensors with a description, which may be anything that JSON can represent."""

    text: Any
    tensors: list[Tensor]


def share(make: Callable[[tuple[int, ...]], Bundle | None], transport: Transport, name: str) -> Bundle:
    """Return the result of make(leaders) on this machine's first rank, in memory that all ranks of the machine map.

    Every rank calls `make`, so that leaders can receive data from all ranks; ranks that are not leaders return None.
    The memory has no name and is freed when its last rank ends, however that rank ends. Ranks that cannot open one
    another's memory (without Linux, or in separate containers) are leaders themselves.
    """
    file, leaders = _meet(transport, name)
    try:
        made = make(tuple(sorted(set(leaders))))
        alone = leaders.count(leaders[transport.rank]) == 1
        if made is not None and not alone:
            _write(file, made)
        transport.all_reduce(Key(f"{name} shared", 0), torch.zeros(1)).wait()
        if made is not None and alone:
            return made
        return _map(file)
    finally:
        os.close(file)


def _meet(transport: Transport, name: str) -> tuple[int, list[int]]:
    """Return the open file of this machine's leader, and the leader of every rank."""
    file = _file()
    facts = torch.tensor([[machine(), os.getpid(), file, os.fstat(file).st_ino]])
    ranks = gather_rows(facts, transport, Key(f"{name} machines", 0)).tolist()
    leader, found = transport.rank, file
    for peer, (where, pid, number, inode) in enumerate(ranks[: transport.rank]):
        opened = _open(pid, number, inode) if where == machine() else None
        if opened is not None:
            leader, found = peer, opened
            break
    leaders = gather_rows(torch.tensor([leader]), transport, Key(f"{name} leaders", 0)).tolist()
    # A rank that can open a follower's file, but not the leader's, leads itself.
    leaders = [peer if leaders[peer] == peer else rank for rank, peer in enumerate(leaders)]
    kept, other = (file, found) if leaders[transport.rank] == transport.rank else (found, file)
    if other != kept:
        os.close(other)
    return kept, leaders


def _file() -> int:
    """Create memory without a name, as a file."""
    return os.memfd_create("fullgraph") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)


def _open(pid: int, number: int, inode: int) -> int | None:
    """Open another process's file; None if it cannot be opened or is a different file."""
    try:
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(file).st_ino == inode:
        return file
    os.close(file)
    return None


def _write(file: int, bundle: Bundle) -> None:
    head = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in bundle.tensors]
    text = json.dumps([bundle.text, head]).encode()
    places, end = _places(len(text), [t.nbytes for t in bundle.tensors])
    try:
        os.posix_fallocate(file, 0, end)  # raises an error now; without it, lack of memory is a bus error later
    except OSError as error:
        raise InputError(f"no memory for {end / 2**30:.1f} GiB that ranks share; use a larger machine") from error
    with mmap.mmap(file, end) as memory:
        memory[:8], memory[8 : 8 + len(text)] = len(text).to_bytes(8), text
        for place, tensor in zip(places, bundle.tensors, strict=True):
            array = tensor.numpy()
            np.frombuffer(memory, array.dtype, array.size, place).reshape(array.shape)[...] = array


def _map(file: int) -> Bundle:
    memory = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    size = int.from_bytes(memory[:8])
    text, head = json.loads(memory[8 : 8 + size])
    types = [np.dtype(kind) for kind, _ in head]
    counts = [int(np.prod(shape)) for _, shape in head]
    places, _ = _places(size, [kind.itemsize * count for kind, count in zip(types, counts, strict=True)])
    tensors = [
        torch.from_numpy(np.frombuffer(memory, kind, count, place).reshape(shape))
        for kind, count, place, (_, shape) in zip(types, counts, places, head, strict=True)
    ]
    return Bundle(text, tensors)


def _places(head: int, sizes: list[int]) -> tuple[list[int], int]:
    """Return the start of each tensor and the end of the last one."""
    places, end = [], 8 + head
    for size in sizes:
        places.append(-(-end // ALIGN) * ALIGN)
        end = places[-1] + size
    return places, end
