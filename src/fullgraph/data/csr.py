"""Arcs (directed edges) as compressed rows.

Row i lists the sources of the arcs INTO node i, ascending; duplicates and self loops stay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array, in_file, over_blocks


def index_dtype(num_nodes: int) -> type[np.int32 | np.int64]:
    """Return int32 if every node id fits, else int64."""
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


class Survey(NamedTuple):
    """Facts from one pass over all arcs: the smallest and largest id, and whether arcs are sorted."""

    low: int
    high: int
    by_target: bool  # True if (target, source) never decreases
    by_source: bool  # True if (source, target) never decreases


def survey(edges: Array) -> Survey:
    """Survey arcs [2, E] in one pass; E is at least 1."""
    num_arcs = edges.shape[1]
    ordered = [True, True]  # by source, by target

    def look(low: int, high: int) -> tuple[int, int]:
        block = edges[:, low : high + 1]  # includes the next block's first arc
        for key in (0, 1):
            if ordered[key]:
                first, then = block[key], block[1 - key]
                rises = first[1:] > first[:-1]
                rises |= (first[1:] == first[:-1]) & (then[1:] >= then[:-1])
                if not rises.all():
                    ordered[key] = False
        return int(block.min()), int(block.max())

    lows, highs = zip(*over_blocks(look, num_arcs), strict=True)
    return Survey(min(lows), max(highs), by_target=ordered[1], by_source=ordered[0])


def csr_by_target(
    source: Array, target: Array, num_nodes: int, weight: Array | None = None, known: Survey | None = None, *,
    num_sources: int | None = None,
) -> tuple[Array, Array, Array | None]:  # fmt: skip
    """Return (indptr, indices, weight) of the arcs source -> target, by two stable counting sorts:  O(N + E).

    Arcs that are known to be sorted need only one of the sorts, or none. num_sources: if sources have a numbering of
    their own.
    """
    shape = (num_nodes if num_sources is None else num_sources, num_nodes)
    if known is not None and known.by_target:
        return indptr_of(target, num_nodes), compact(source, shape[0]), weight
    if known is not None and known.by_source:
        data = np.ones(source.shape[0], dtype=np.int8) if weight is None else weight
        parts = (data, compact(target, num_nodes), indptr_of(source, shape[0]))
        return _parts(sp.csr_array(parts, shape=shape).tocsc(), shape[0], weight is not None)
    data = np.ones(source.shape[0], dtype=np.int8) if weight is None else weight
    index = index_dtype(max(shape))
    pair = (source.astype(index, copy=False), target.astype(index, copy=False))
    coo = sp.coo_array((data, pair), shape=shape)
    coo.has_canonical_format = True  # otherwise tocsr() would sum duplicate arcs
    by_target = coo.tocsr().tocsc()
    return _parts(by_target, shape[0], weight is not None)


def sort_rows(
    indptr: Array, indices: Array, num_nodes: int, weight: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """Return the same rows with ascending sources; sorted arrays are returned unchanged."""
    if _rows_sorted(indptr, indices):
        return indptr.astype(np.int64, copy=False), indices.astype(index_dtype(num_nodes), copy=False), weight
    data = np.ones(indices.shape[0], dtype=np.int8) if weight is None else weight
    twice = sp.csr_array((data, indices, indptr), shape=(num_nodes, num_nodes)).tocsc().tocsr()
    return _parts(twice, num_nodes, weight is not None)


def compact(ids: Array, num_nodes: int) -> Array:
    """Return ids in the smallest type: ids in a file without a copy if possible, others as a copy."""
    if in_file(ids) and ids.dtype == index_dtype(num_nodes) and ids.flags.c_contiguous and ids.flags.aligned:
        return ids
    out = np.empty(ids.shape[0], dtype=index_dtype(num_nodes))

    def copy(low: int, high: int) -> None:
        out[low:high] = ids[low:high]

    for _ in over_blocks(copy, ids.shape[0]):
        pass
    return out


def indptr_of(rows: Array, num_rows: int) -> Array:
    """Return the row pointers [R+1] of entries whose rows never decrease."""

    def starts(low: int, high: int) -> Array:
        """Return the entries in a block that begin a row."""
        begins = np.flatnonzero(rows[low + 1 : high] != rows[low : high - 1]) + low + 1
        first = low == 0 or rows[low] != rows[low - 1]
        return np.concatenate([[low], begins]) if first else begins

    first = np.concatenate([np.empty(0, dtype=np.int64), *over_blocks(starts, rows.shape[0])])
    indptr = np.zeros(num_rows + 1, dtype=np.int64)
    indptr[rows[first].astype(np.int64) + 1] = np.diff(first, append=rows.shape[0])
    return np.cumsum(indptr, out=indptr)


def targets(indptr: Array, dtype: Any = np.int64) -> Array:
    """Return the target of every arc, in CSR order."""
    num_rows = indptr.shape[0] - 1
    return np.repeat(np.arange(num_rows, dtype=dtype), np.diff(indptr))


def symmetric(indptr: Array, indices: Array, weight: Array | None = None) -> bool:
    """Whether A = A^T as a multiset of arcs, including summed weights."""
    num_nodes = indptr.shape[0] - 1
    data = np.ones(indices.shape[0], dtype=np.int8) if weight is None else weight
    adj = sp.csr_array((data, indices, indptr), shape=(num_nodes, num_nodes))
    turned = adj.tocsc()
    if not (np.array_equal(turned.indptr, indptr) and np.array_equal(turned.indices, indices)):
        return False
    if weight is None:
        return True
    adj = adj.copy()
    adj.sum_duplicates()
    turned.sum_duplicates()
    return bool(np.allclose(adj.data, turned.data, rtol=1e-6, atol=0.0))


def _rows_sorted(indptr: Array, indices: Array) -> bool:
    if indices.shape[0] < 2:
        return True
    rising = np.empty(indices.shape[0], dtype=bool)
    rising[0] = True
    np.greater_equal(indices[1:], indices[:-1], out=rising[1:])
    starts = indptr[:-1]
    rising[starts[starts < indices.shape[0]]] = True
    return bool(rising.all())


def _parts(compressed: Any, num_nodes: int, weighted: bool) -> tuple[Array, Array, Array | None]:
    indptr = compressed.indptr.astype(np.int64, copy=False)
    indices = compressed.indices.astype(index_dtype(num_nodes), copy=False)
    return indptr, indices, compressed.data if weighted else None
