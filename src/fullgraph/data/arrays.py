"""Convert user data (numpy, torch, scipy, lists) into read-only numpy arrays, and process long arrays block by block.

Blocks run in several threads: numpy releases the GIL while it computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fullgraph.errors import InputError
from fullgraph.proc import num_cores

Array = npt.NDArray[Any]
FeatureMatrix = Any  # np.ndarray [N, F] floating, or scipy.sparse.csr_array [N, F]; scipy has no type annotations

# numpy parses the header of a .npy file with `ast`, which in Python 3.11 may fail in concurrent threads.
PARSING = threading.Lock()


def as_numpy(value: Any) -> Array:
    """Return a numpy view of `value` if possible, else a copy; torch tensors are recognised by `detach`."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return np.asarray(value.numpy())
        except TypeError:  # bfloat16 has no numpy type
            return np.asarray(value.float().numpy())
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        raise InputError("a nested list has rows of different lengths: give a rectangular array") from None


def as_csr_array(value: Any) -> Any | None:
    """Return a sparse `value` (of scipy or torch) as a scipy csr_array; None if it is not sparse."""
    if sp.issparse(value):
        return sp.csr_array(value)
    if str(getattr(value, "layout", "")).startswith("torch.sparse"):
        coo = value.detach().cpu().to_sparse_coo().coalesce()
        row, column = as_numpy(coo.indices())
        return sp.csr_array((as_numpy(coo.values()), (row, column)), shape=tuple(coo.shape))
    return None


def in_file(array: Array) -> bool:
    """Whether an array is in a file that is memory-mapped for reading."""
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return base is not None and not base.flags.writeable


def frozen(array: Array) -> Array:
    """Return a read-only view; the caller's own array keeps its flags."""
    view = array.view()
    view.setflags(write=False)
    return view


def frozen_csr(csr: Any) -> Any:
    """Return the same sparse matrix over read-only views of its three arrays."""
    out = sp.csr_array((frozen(csr.data), frozen(csr.indices), frozen(csr.indptr)), shape=csr.shape)
    out.has_canonical_format = True  # checked by the caller; saves a scan at every use
    return out


S = TypeVar("S")
T = TypeVar("T")
BLOCK = 1 << 19  # entries: a few temporary arrays of this length fit in a core's cache
FEW = 3  # this many blocks are computed faster than threads start


class Tally:
    """Counts the units of work that several threads have done, and reports (done, total)."""

    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self.progress, self.total, self.count = progress, total, 0
        self._lock = threading.Lock()

    def more(self, count: int) -> None:
        with self._lock:
            self.count += count
            self.progress(self.count, self.total)


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
