"""Arcs as compressed rows: row i lists the sources of the arcs INTO node i, ascending; duplicates and loops stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array


def index_dtype(num_nodes: int) -> type[np.int32 | np.int64]:
    """int32 wherever every node id fits, int64 beyond."""
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


def csr_by_target(
    source: Array, target: Array, num_nodes: int, weight: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """(indptr, indices, weight) of the arcs source -> target by two stable counting sorts:  O(N + E)."""
    data = np.ones(source.shape[0], dtype=np.int8) if weight is None else weight
    index = index_dtype(num_nodes)
    pair = (source.astype(index, copy=False), target.astype(index, copy=False))
    coo = sp.coo_array((data, pair), shape=(num_nodes, num_nodes))
    coo.has_canonical_format = True  # or tocsr() would add duplicate arcs up
    by_target = coo.tocsr().tocsc()
    return _parts(by_target, num_nodes, weight is not None)


def sort_rows(
    indptr: Array, indices: Array, num_nodes: int, weight: Array | None = None
) -> tuple[Array, Array, Array | None]:
    """The same rows with sources ascending; arrays that are sorted already come back as they are."""
    if _rows_sorted(indptr, indices):
        return indptr.astype(np.int64, copy=False), indices.astype(index_dtype(num_nodes), copy=False), weight
    data = np.ones(indices.shape[0], dtype=np.int8) if weight is None else weight
    twice = sp.csr_array((data, indices, indptr), shape=(num_nodes, num_nodes)).tocsc().tocsr()
    return _parts(twice, num_nodes, weight is not None)


def targets(indptr: Array, dtype: Any = np.int64) -> Array:
    """The target of every arc, in CSR order."""
    num_rows = indptr.shape[0] - 1
    return np.repeat(np.arange(num_rows, dtype=dtype), np.diff(indptr))


def symmetric(indptr: Array, indices: Array, weight: Array | None = None) -> bool:
    """Whether A = A^T as a multiset of arcs, and in the summed weights where there are any."""
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
