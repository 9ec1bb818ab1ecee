"""Check a user's graph: each function returns a clean array or raises one line that names the fix.

A graph without features gets one column per node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import BLOCK, Array, FeatureMatrix, as_csr_array, as_numpy, over_blocks
from fullgraph.data.csr import Survey, survey
from fullgraph.data.names import Names
from fullgraph.errors import InputError, one_line

_BLOCK_ENTRIES = 1 << 22


def row_blocks(num_rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows with about 4 million entries, so that a memory-mapped matrix is never fully in memory."""
    step = max(1, _BLOCK_ENTRIES // max(1, width))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def as_real(what: str, values: Array) -> Array:
    """Return real numbers of any type as float32, or as float64 if they have that many digits."""
    if values.dtype.kind not in "iubf":
        raise InputError(f"{what} has the type {values.dtype}: give real numbers (float or integer)")
    if values.dtype in (np.float32, np.float64):
        return values
    with np.errstate(over="ignore"):  # infinite results are refused later
        return values.astype(np.float64 if values.dtype.kind == "f" and values.dtype.itemsize >= 8 else np.float32)


def check_features(x: Any) -> FeatureMatrix:
    """Return x as [N, F] floating, dense or csr_array, with finite entries; integers become float32."""
    csr = as_csr_array(x)
    if csr is not None:
        return _check_sparse(csr)
    dense = as_numpy(x)
    if dense.ndim != 2 or 0 in dense.shape:
        raise InputError(f"x has shape {dense.shape}: give a matrix [nodes, features] with at least one of each")
    if dense.dtype != np.float16:  # float16 is widened later, in blocks of rows
        dense = as_real("x", dense)

    def bad(low: int, high: int) -> tuple[int, int] | None:
        good = np.isfinite(dense[low:high])
        if good.all():
            return None
        row, column = (int(v) for v in np.argwhere(~good)[0])
        return low + row, column

    position = next(filter(None, over_blocks(bad, len(dense), max(1, BLOCK // dense.shape[1]))), None)
    if position is not None:
        where = f"node {position[0]}, column {position[1]}"
        raise InputError(f"x holds NaN or infinity ({where}): replace it, for example with numpy.nan_to_num")
    return dense


def _check_sparse(csr: Any) -> Any:
    if 0 in csr.shape:
        raise InputError(f"x has shape {csr.shape}: give a matrix [nodes, features] with at least one of each")
    csr = sp.csr_array((as_real("x", csr.data), csr.indices, csr.indptr), shape=csr.shape)
    try:
        csr.check_format(full_check=True)
    except ValueError as bad:
        raise InputError(f"the CSR parts of x do not fit together ({one_line(bad)}): rebuild them with scipy") from None
    if not np.isfinite(csr.data).all():
        raise InputError("x holds NaN or infinity: replace it, for example with numpy.nan_to_num on x_data")
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def check_edge_index(edge_index: Any, num_nodes: int) -> tuple[Array, Survey | None]:
    """Return edge_index as integers [2, E] in 0..N-1, and its order."""
    edges = as_numpy(edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"edge_index has shape {edges.shape}: give [2, edges], row 0 the sources, row 1 the targets")
    if edges.shape[1] == 0:
        return edges.astype(np.int64), None
    _check_integers("edge_index", edges)
    facts = survey(edges)
    _check_ids("edge_index", facts.low, facts.high, num_nodes)
    return edges, facts


def check_ends(edge_index: Any, sources: tuple[str, int], targets: tuple[str, int]) -> Array:
    """Return edges [2, E] between two node types as integers; sources and targets: (type, number of nodes)."""
    edges = as_numpy(edge_index)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"edge_index has shape {edges.shape}: give [2, edges], row 0 the sources, row 1 the targets")
    if edges.shape[1] == 0:
        return edges.astype(np.int64)
    _check_integers("edge_index", edges)
    for row, end, (kind, count) in ((0, "source", sources), (1, "target", targets)):
        low, high = int(edges[row].min()), int(edges[row].max())
        if low < 0 or high >= count:
            ids = f"ids 0 to {count - 1}" if count else "no ids"
            raise InputError(
                f"edge_index holds the {end} {low if low < 0 else high}, but {kind} has {count} nodes ({ids}): "
                f"fix the ids, or give {kind} a row for every node"
            )
    return edges


def check_csr(indptr: Any, indices: Any, num_nodes: int) -> tuple[Array, Array]:
    """Return indptr [N+1], which rises from 0 to E, and indices [E] in 0..N-1."""
    indptr, indices = as_numpy(indptr), as_numpy(indices)
    if indptr.ndim != 1 or indices.ndim != 1 or indptr.dtype.kind not in "iu":
        raise InputError("indptr and indices have to be one-dimensional integer arrays: give the parts of a CSR matrix")
    if indptr.shape[0] != num_nodes + 1:
        raise InputError(
            f"indptr has {indptr.shape[0]} entries for the {num_nodes} nodes of x: give one per node and one more"
        )
    if indptr[0] != 0 or indptr[-1] != indices.shape[0] or (indptr[1:] < indptr[:-1]).any():
        raise InputError(
            f"indptr has to rise from 0 to the {indices.shape[0]} entries of indices: rebuild the CSR parts"
        )
    if indices.shape[0]:
        _check_integers("indices", indices)
        _check_ids("indices", int(indices.min()), int(indices.max()), num_nodes)
    return indptr, indices


def _check_integers(what: str, ids: Array) -> None:
    if ids.dtype.kind not in "iu":
        raise InputError(f"{what} has the type {ids.dtype}: node ids have to be integers, cast them")


def _check_ids(what: str, low: int, high: int, num_nodes: int) -> None:
    if low < 0:
        raise InputError(
            f"{what} holds the negative node id {low}: ids run from 0 to {num_nodes - 1}, remove such edges"
        )
    if high >= num_nodes:
        raise InputError(
            f"{what} holds the node id {high}, but x has {num_nodes} rows (ids 0 to {num_nodes - 1}): "
            "fix the ids or give x a row for every node"
        )


def check_weight(weight: Any, num_arcs: int) -> Array:
    """Return edge_weight as finite float32 or float64 [E]."""
    values = as_numpy(weight)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.shape[0] != num_arcs:
        raise InputError(f"edge_weight has shape {values.shape} for {num_arcs} edges: give one number per edge")
    values = as_real("edge_weight", values)
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"edge_weight holds NaN or infinity (edge {first}): remove it or give it a finite weight")
    return values


def check_edge_features(attr: Any, num_arcs: int) -> Array:
    """Return edge_attr as finite float32 or float64 [E, K]; [E] is read as one feature per edge."""
    values = as_numpy(attr)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[0] != num_arcs:
        raise InputError(f"edge_attr has shape {values.shape} for {num_arcs} edges: give one row of features per edge")
    values = as_real("edge_attr", values)
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise InputError(f"edge_attr holds NaN or infinity (edge {first}): give the edge finite features")
    return values


def check_names(names: Any, num_nodes: int) -> Names | None:
    """Check the names of nodes, one per node."""
    if names is None:
        return None
    checked = names if isinstance(names, Names) else Names.of(names)
    if len(checked) != num_nodes:
        raise InputError(f"names has {len(checked)} entries for the {num_nodes} nodes of x: give one per node")
    return checked


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
