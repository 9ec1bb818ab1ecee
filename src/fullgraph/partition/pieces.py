"""A part cut once more, into pieces that a pipeline takes one after the other."""

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array
from fullgraph.partition.base import blocks_of_ids, quietly


def pieces_of(indptr: Array, indices: Array, pieces: int) -> Array:
    """The piece of every row of a square pattern: METIS parts, as heavy as one another; blocks where it is missing."""
    rows = len(indptr) - 1
    if pieces == 1 or rows < 2 * pieces:
        return blocks_of_ids(rows, pieces)
    try:
        import pymetis
    except ImportError:
        return blocks_of_ids(rows, pieces)
    ones = np.ones(len(indices), dtype=np.bool_)  # a count of parallel arcs might wrap to none
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
