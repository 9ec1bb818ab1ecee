"""Process long arrays in several threads, block by block: numpy releases the GIL while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
BLOCK = 1 << 19  # entries: a few temporary arrays of this length fit in a core's cache
FEW = 3  # this many blocks are computed faster than threads start


def at_once(body: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Yield body(item) of every item in order, computed on all cores."""
    if len(items) < 2:
        yield from map(body, items)
        return
    with ThreadPoolExecutor(min(len(items), num_cores()), thread_name_prefix="fullgraph-blocks") as pool:
        yield from pool.map(body, items)


def over_blocks(body: Callable[[int, int], T], length: int, block: int = BLOCK) -> Iterator[T]:
    """Yield body(low, high) of consecutive blocks of 0..length-1, in order."""
    bounds = [(low, min(low + block, length)) for low in range(0, length, block)]
    if len(bounds) <= FEW:
        return (body(*bound) for bound in bounds)
    return at_once(lambda bound: body(*bound), bounds)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
