"""Convert user data (numpy, torch, scipy, lists) into read-only numpy arrays."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from fullgraph.errors import InputError

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
