"""A memory pool for large CPU tensors: each block serves later tensors of the same size.

The C library returns a large block to the system as soon as its tensor dies; the next tensor then needs page faults,
and the kernel clears every page. Every step creates the same tensors, so the pool reuses those of the previous step.
"""

from collections import deque
from collections.abc import Sequence
from math import prod
from threading import Lock
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = 1 << 20  # bytes; the C library keeps smaller blocks in the process
SLACK = 1.1  # limit of the pool's bytes, as a multiple of the most bytes in use at the same time
TYPES: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}

Block = NDArray[np.uint8]


class Pool:
    """Blocks of dead tensors. Together with used blocks they hardly exceed the most bytes in use at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[Block] = []  # the oldest first
        self._returned: deque[Block] = deque()  # a tensor may die anywhere, even while the lock is held
        self._used = self._most = 0  # bytes in use, now and at the maximum

    def take(self, size: int) -> Block:
        """Return a block of exactly this size: a free one, or a new one, for which old free blocks are released."""
        with self._lock:
            self._collect()
            self._used += size
            self._most = max(self._most, self._used)
            for place in reversed(range(len(self._free))):
                if self._free[place].size == size:
                    return self._free.pop(place)
            free = sum(block.size for block in self._free)
            while self._free and self._used + free > SLACK * self._most:
                free -= self._free.pop(0).size
        fresh: Block = torch.empty(size, dtype=torch.uint8).numpy()
        return fresh

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._used -= block.size
            self._free.append(block)

    def give_back(self, block: Block) -> None:
        self._returned.append(block)

    def clear(self) -> None:
        """Release all free blocks to the system."""
        with self._lock:
            self._collect()
            self._free.clear()
            self._most = self._used


POOL = Pool()


def empty(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialised tensor of `like`'s type and device; large tensors come from the pool."""
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or like.dtype not in TYPES or size < LARGE:
        return like.new_empty(shape)
    return _tensor(POOL.take(size), shape, TYPES[like.dtype])


def _tensor(block: Block, shape: Sequence[int], dtype: type[np.floating]) -> Tensor:
    array: NDArray[np.floating] = np.ndarray(shape, dtype, buffer=block)
    finalize(array, POOL.give_back, block).atexit = False  # torch holds the array while any view of the tensor lives
    return torch.from_numpy(array)
