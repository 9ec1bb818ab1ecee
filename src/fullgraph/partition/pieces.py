"""Divide a part into pieces that a pipeline computes one after another."""

from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array
from fullgraph.partition.base import blocks_of_ids
from fullgraph.partition.metis import adjacency_of, metis_parts


def pieces_of(indptr: Array, indices: Array, pieces: int) -> Array:
    """Return the piece of every row of a square pattern: METIS parts of equal weight, or blocks without METIS."""
    rows = len(indptr) - 1
    if pieces == 1 or rows < 2 * pieces or find_spec("pymetis") is None:
        return blocks_of_ids(rows, pieces)
    ones = np.ones(len(indices), dtype=np.bool_)  # a count of parallel arcs could wrap to zero
    pattern = sp.csr_array((ones, indices, indptr), shape=(rows, rows))
    both = sp.csr_array(pattern + pattern.T)
    both.setdiag(0)
    both.eliminate_zeros()
    degree = np.diff(both.indptr)
    weight = degree + int(degree.mean()) + 1
    return metis_parts(adjacency_of(both.indptr, both.indices), weight, pieces, seed=0, recursive=True)
