"""The transpose of a pattern: a counting sort on a CPU; on a GPU in pieces, since sorting all arcs needs many copies.

Shapes: R rows, C columns, E arcs; indptr is int64 [R+1], indices is int32 [E].
"""

from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

INT32_MAX = 2**31 - 1
SORTED_AT_ONCE = 1 << 25  # arcs; sorting these takes about 1 GiB
COMPARED_AT_ONCE = 1 << 23  # arcs; a comparison keeps about ten int64 per arc
SCANNED_AT_ONCE = 1 << 28  # arcs; torch.nonzero accepts fewer than 2^31 numbers


def indptr_of(counts_R: Tensor) -> Tensor:
    """Row pointers [R+1] of rows with the given numbers of entries:  indptr[r] = counts[0] + ... + counts[r-1]."""
    return torch.nn.functional.pad(counts_R.cumsum(0), (1, 0))


def transpose(indptr: Tensor, indices: Tensor, num_cols: int, *, with_perm: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return (indptr, indices, perm) of the transpose, rows ascending: its arc k is arc perm[k] of the given pattern.

    Without `with_perm` the third tensor has no meaning.
    """
    if indices.is_meta:  # shapes only
        return indptr.new_empty(num_cols + 1), torch.empty_like(indices), torch.empty_like(indices)
    if indices.is_cuda:
        return transpose_in_pieces(indptr, indices, num_cols, with_perm=with_perm)
    num_rows, num_arcs = indptr.numel() - 1, indices.numel()
    index = np.int32 if num_arcs <= INT32_MAX else np.int64
    place = np.arange(num_arcs, dtype=index) if with_perm else np.zeros(num_arcs, np.int8)
    parts = (place, indices.numpy().astype(index, copy=False), indptr.numpy().astype(index))
    turned = sp.csr_array(parts, shape=(num_rows, num_cols), copy=False).tocsc()
    indptr_t = torch.from_numpy(turned.indptr.astype(np.int64))
    return indptr_t, torch.from_numpy(turned.indices.astype(np.int32, copy=False)), torch.from_numpy(turned.data)


def transpose_in_pieces(
    indptr: Tensor, indices: Tensor, num_cols: int, *, with_perm: bool, at_once: int = SORTED_AT_ONCE
) -> tuple[Tensor, Tensor, Tensor]:
    """Like `transpose`, in blocks of columns with about `at_once` arcs each."""
    num_arcs = indices.numel()
    counts = torch.zeros(num_cols, dtype=torch.int64, device=indices.device)
    for part in indices.split(SCANNED_AT_ONCE):
        counts += torch.bincount(part, minlength=num_cols)
    indptr_t = indptr_of(counts)
    indices_t = torch.empty_like(indices)
    perm_type = torch.int32 if num_arcs <= INT32_MAX else torch.int64
    perm = torch.empty(num_arcs if with_perm else 0, dtype=perm_type, device=indices.device)
    even = torch.arange(0, num_arcs, at_once, device=indices.device)
    cuts = sorted({0, *torch.searchsorted(indptr_t, even).tolist(), num_cols})
    ends: list[int] = indptr_t[cuts].tolist()
    for (low, high), (first, last) in zip(pairwise(cuts), pairwise(ends), strict=True):
        arcs = _arcs_from(indices, low, high)
        arcs = arcs[indices[arcs].sort(stable=True).indices]
        indices_t[first:last] = rows_of(indptr, arcs)
        if with_perm:
            perm[first:last] = arcs
    return indptr_t, indices_t, perm


def is_symmetric(indptr: Tensor, indices: Tensor, *, at_once: int = COMPARED_AT_ONCE) -> bool:
    """Whether the transpose of the square pattern has the same arrays: rows ascend, and every arc has its reverse.

    The k-th copy of an arc j -> i needs a k-th copy of i -> j. This takes two binary searches per arc and no sort.
    """
    num_arcs = indices.numel()
    if not num_arcs:
        return True
    steps = int(indptr.diff().max()).bit_length()
    for first in range(0, num_arcs, at_once):
        arc = torch.arange(max(first - 1, 0), min(first + at_once, num_arcs), device=indices.device)
        row, col = rows_of(indptr, arc).long(), indices[arc].long()
        if bool(((col.diff() < 0) & (row.diff() == 0)).any()):
            return False
        copy = arc - _lower_bound(indices, indptr[row], indptr[row + 1], col, steps)
        end = indptr[col + 1]
        back = _lower_bound(indices, indptr[col], end, row, steps) + copy
        if not bool(((back < end) & (indices[back.clamp_(max=num_arcs - 1)] == row)).all()):
            return False
    return True


def rows_of(indptr: Tensor, arcs: Tensor) -> Tensor:
    """Return the row of each of these arcs, int32."""
    return torch.searchsorted(indptr[1:], arcs, right=True, out_int32=True)


def _arcs_from(indices: Tensor, low: int, high: int) -> Tensor:
    """Return the arcs whose source lies in [low, high), ascending."""
    found = []
    for first in range(0, indices.numel(), SCANNED_AT_ONCE):
        part = indices[first : first + SCANNED_AT_ONCE]
        found.append(((part >= low) & (part < high)).nonzero().view(-1) + first)
    return torch.cat(found) if found else indices.new_empty(0, dtype=torch.int64)


def _lower_bound(values: Tensor, low: Tensor, high: Tensor, wanted: Tensor, steps: int) -> Tensor:
    """Return the first position in [low, high) with a value of at least `wanted`, or high; values ascend per range."""
    last = values.numel() - 1
    for _ in range(steps):
        middle = (low + high) >> 1
        below = (values[middle.clamp(max=last)] < wanted) & (low < high)
        low, high = torch.where(below, middle + 1, low), torch.where(below, high, middle)
    return low
