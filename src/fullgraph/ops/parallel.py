"""Run a kernel over chunks of rows, on a thread pool shared by the process.

The kernels release the GIL, so Python threads suffice. OpenMP is not used: simulated ranks call the kernels from
several threads at the same time, which numba's thread pool may not survive.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

SERIAL_WORK = 50_000  # multiply-adds; below this, waking a second thread costs more than it saves
CHUNK_WORK = 1_000_000  # about 100 microseconds: well above the cost of passing on a chunk, which holds the GIL
CHUNKS_PER_THREAD = 16  # more than one, because a core shared with another process finishes late
POOL_NAME = "fullgraph-kernel"  # tests/support/leaks.py knows this name: the threads live as long as the process


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Return the process's helper threads; the process id is the key because threads do not survive a fork."""
    cores = len(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(1, cores - 1), thread_name_prefix=POOL_NAME)


def num_chunks(work: int) -> int:
    """Return the number of chunks for `work` multiply-adds: a power of two; 1 if a single thread is as fast."""
    threads = torch.get_num_threads()
    if threads == 1 or work < SERIAL_WORK:
        return 1
    wanted = min(max(work // CHUNK_WORK, threads), threads * CHUNKS_PER_THREAD)
    return 1 << (wanted - 1).bit_length()


def even_cuts(num_rows: int, chunks: int) -> list[int]:
    """Return the boundaries of `chunks` ranges of rows of about the same length."""
    return [num_rows * c // chunks for c in range(chunks + 1)]


def balanced_cuts(indptr: NDArray[np.int64], chunks: int) -> list[int]:
    """Return the boundaries of `chunks` ranges of rows with about the same number of (arcs + rows)."""
    if chunks == 1:
        return [0, indptr.size - 1]
    load = indptr + np.arange(indptr.size)
    inner = np.searchsorted(load, np.linspace(0, load[-1], chunks + 1)[1:-1])
    return [0, *inner.tolist(), indptr.size - 1]


def run(body: Callable[[int, int], None], cuts: Sequence[int]) -> None:
    """Call body(cuts[c], cuts[c+1]) for every chunk c; the caller works too, and never waits for a helper to start."""
    turns = iter(range(len(cuts) - 1))

    def work() -> None:
        for c in turns:
            if cuts[c] < cuts[c + 1]:
                body(cuts[c], cuts[c + 1])

    wanted = min(torch.get_num_threads(), len(cuts) - 1) - 1
    helpers = [_pool(os.getpid()).submit(work) for _ in range(wanted)]
    try:
        work()
    finally:
        # A queued helper has nothing left to do; a running one must be awaited, because it writes into the result.
        running = [h for h in helpers if not h.cancel()]
        for helper in running:
            helper.result()
