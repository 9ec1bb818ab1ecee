"""Work on long arrays a block at a time, on all cores: numpy lets go of the interpreter while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
BLOCK = 1 << 19  # entries: a few temporaries of that length stay in a core's cache


def over_blocks(body: Callable[[int, int], T], length: int, block: int = BLOCK) -> Iterator[T]:
    """body(low, high) for blocks that make up 0..length-1; the results in order, from several threads if it is long."""
    starts = range(0, length, block)
    ends = [min(low + block, length) for low in starts]
    if len(ends) < 4:
        yield from map(body, starts, ends)
        return
    with ThreadPoolExecutor(num_cores(), thread_name_prefix="fullgraph-blocks") as pool:
        yield from pool.map(body, starts, ends)


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
