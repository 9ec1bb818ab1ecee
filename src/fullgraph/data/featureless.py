"""Features for a graph without features: one column per node."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import as_numpy
from fullgraph.errors import InputError

MOST_NODES = 1 << 17  # the model's first weights have a row per node
NOTE = (
    "the graph has no features: each of its {nodes:,} nodes gets its own column (one-hot), so a model learns a "
    "row for each node, and can predict on these nodes only"
)


def one_hot(num_nodes: int) -> Any:
    """Return x = I, sparse: a model's first weights then hold a learned row for every node."""
    if num_nodes > MOST_NODES:
        raise InputError(
            f"the graph has no features and {num_nodes:,} nodes; one-hot columns are made for at most {MOST_NODES:,}: "
            "give x, for example the nodes' degrees"
        )
    rows = np.arange(num_nodes + 1)
    return sp.csr_array((np.ones(num_nodes, np.float32), rows[:-1], rows), shape=(num_nodes, num_nodes))


def nodes_of(num_nodes: Any, y: Any, names: Any, edge_index: Any) -> int:
    """Return the number of nodes of a graph without features: num_nodes, or that of labels, names or ids."""
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
        raise InputError("the graph has neither features nor labels nor edges: give x, or num_nodes")
    return int(edges.max()) + 1
