"""Divide a part into pieces that a pipeline computes one after another."""

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array
from fullgraph.partition.base import blocks_of_ids, quietly


def pieces_of(indptr: Array, indices: Array, pieces: int) -> Array:
    """Return the piece of every row of a square pattern: METIS parts of equal weight, or blocks without METIS."""
    rows = len(indptr) - 1
    if pieces == 1 or rows < 2 * pieces:
        return blocks_of_ids(rows, pieces)
    try:
        import pymetis
    except ImportError:
        return blocks_of_ids(rows, pieces)
    ones = np.ones(len(indices), dtype=np.bool_)  # a count of parallel arcs could wrap to zero
    pattern = sp.csr_array((ones, indices, indptr), shape=(rows, rows))
    both = sp.csr_array(pattern + pattern.T)
    both.setdiag(0)
    both.eliminate_zeros()
    degree = np.diff(both.indptr)
    index = pymetis.zero_copy_dtype()
    with quietly():
        found = pymetis.part_graph(
            pieces,
            pymetis.CSRAdjacency(both.indptr.astype(index), both.indices.astype(index)),
            vweights=(degree + int(degree.mean()) + 1).astype(index),
            recursive=True,
            options=pymetis.Options(seed=0),
        )
    return np.asarray(found.vertex_part).astype(np.int32)
