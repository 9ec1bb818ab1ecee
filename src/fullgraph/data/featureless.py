"""Features for a graph that has none: a column of its own for every node."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import as_numpy
from fullgraph.errors import InputError

MOST_NODES = 1 << 17  # a model's first weights have a row for each
NOTE = (
    "the graph has no features: each of its {nodes:,} nodes gets a column of its own (one-hot), so a model learns a "
    "row for each node, and can predict on these nodes alone"
)


def one_hot(num_nodes: int) -> Any:
    """x = I, sparse: a model's first weights are then a learned row for every node."""
    if num_nodes > MOST_NODES:
        raise InputError(
            f"the graph has no features and {num_nodes:,} nodes; one-hot columns are made for at most {MOST_NODES:,}: "
            "give x, for example the nodes' degrees"
        )
    rows = np.arange(num_nodes + 1)
    return sp.csr_array((np.ones(num_nodes, np.float32), rows[:-1], rows), shape=(num_nodes, num_nodes))


def nodes_of(num_nodes: Any, y: Any, names: Any, edge_index: Any) -> int:
    """How many nodes a graph without features has: as it says, as many as labels or names, or up to the largest id."""
    if num_nodes is not None:
        count = as_numpy(num_nodes)
        if count.size != 1 or count.dtype.kind not in "iu" or int(count.reshape(())) < 1:
            raise InputError(f"num_nodes is {count.dtype} {count.shape}: give one whole number, at least 1")
        return int(count.reshape(()))
    for one_a_node in (y, names):
        if one_a_node is not None:
            return len(one_a_node)
    edges = as_numpy(edge_index)
    if not edges.size or edges.dtype.kind not in "iu":
        raise InputError("the graph has neither features nor labels nor arcs: give x, or num_nodes")
    return int(edges.max()) + 1
