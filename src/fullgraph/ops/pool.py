"""Memory of large tensors on a CPU, kept for the next one of the same size.

The C library gives a large block back to the system as soon as its tensor dies. The next tensor then has all its pages
faulted in and cleared again. Every step makes the same tensors, so a pool serves them from those of the step before.
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

LARGE = 1 << 20  # bytes; smaller blocks never leave the process
SLACK = 1.1  # a pool holds at most this many times the bytes that were once in use at the same time
TYPES: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}

Block = NDArray[np.uint8]


class Pool:
    """Blocks whose tensors died. With those in use they are hardly more than was once in use at the same time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[Block] = []  # the oldest first
        self._returned: deque[Block] = deque()  # a tensor may die anywhere, even while the lock is held
        self._used = self._most = 0  # bytes in use, now and at most

    def take(self, size: int) -> Block:
        """A block of exactly this size; if none is free, a new one, for which old free blocks make room."""
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
        """Give all free blocks back to the system."""
        with self._lock:
            self._collect()
            self._free.clear()
            self._most = self._used


POOL = Pool()


def empty(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor of this shape, of `like`'s type and device; from the pool where it is large."""
    size = prod(shape) * like.element_size()
    if like.device.type != "cpu" or like.dtype not in TYPES or size < LARGE:
        return like.new_empty(shape)
    return _tensor(POOL.take(size), shape, TYPES[like.dtype])


def _tensor(block: Block, shape: Sequence[int], dtype: type[np.floating]) -> Tensor:
    array: NDArray[np.floating] = np.ndarray(shape, dtype, buffer=block)
    finalize(array, POOL.give_back, block).atexit = False  # torch holds the array as long as any view of the tensor
    return torch.from_numpy(array)
