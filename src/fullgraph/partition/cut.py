"""Cut a graph into parts: pure functions from (graph, assignment) to each part's local arrays.

Legend: n owned rows, h halo rows, e arcs into owned rows.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph, fit_features
from fullgraph.data.arrays import Array
from fullgraph.errors import InputError
from fullgraph.partition.base import Assignment
from fullgraph.partition.layout import INT32_MAX, Layout, arc_blocks, lay_out
from fullgraph.partition.manifest import describe
from fullgraph.partition.part import PAIRS, Part, assemble
from fullgraph.partition.quality import quality


def structure_of(graph: Graph, layout: Layout, rank: int) -> dict[str, Array]:
    """A part's ids, arcs and routes.

    Local column of a source: its row at the owner if that is `rank`, else n + its place in halo_ids. The rows sent to
    peer q are the local rows of  halo_from(q, rank),  so both ends agree on their order without talking.
    """
    ids, halo = layout.owned[rank], layout.halo[rank]
    n, h = len(ids), len(halo)
    if n + h > INT32_MAX:
        raise InputError(f"part {rank} reads {n + h} rows, more than 32 bits can number; use more parts")
    indptr, indices, weight, attr = _whole(graph) if layout.parts == 1 else _arcs_of(graph, layout, rank)
    sent = [layout.row[layout.halo_from(peer, rank)] for peer in range(layout.parts)]
    arrays = {
        "ids": ids.astype(np.int64),
        "halo_ids": halo.astype(np.int64),
        "indptr": indptr,
        "indices": indices,
        "recv_counts": layout.recv_counts[rank].copy(),
        "send_counts": layout.recv_counts[:, rank].copy(),
        "send_rows": np.concatenate(sent).astype(np.int64),
    }
    if weight is not None:
        arrays["weight"] = weight
    if attr is not None:
        arrays["edge_attr"] = attr
    if layout.position is not None:
        arrays["position"] = layout.position[ids]
    return arrays


Arcs = tuple[Array, Array, Array | None, Array | None]  # indptr, indices, weights, features


def _whole(graph: Graph) -> Arcs:
    """The arcs of the one part there is: the graph's own, not a copy."""
    return graph.indptr, graph.indices.astype(np.int32, copy=False), graph.edge_weight, graph.edge_attr


def _arcs_of(graph: Graph, layout: Layout, rank: int) -> Arcs:
    """A part's arcs over local columns."""
    ids, halo = layout.owned[rank], layout.halo[rank]
    column = layout.row.copy()
    column[halo] = np.arange(len(ids), len(ids) + len(halo))
    indptr = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(graph.indptr[ids + 1] - graph.indptr[ids], out=indptr[1:])
    indices = np.empty(int(indptr[-1]), dtype=np.int32)
    weight, attr = (_like(values, len(indices)) for values in (graph.edge_weight, graph.edge_attr))
    for place, arcs in arc_blocks(graph.indptr, ids):
        indices[place] = column[graph.indices[arcs]]
        for mine, whole in ((weight, graph.edge_weight), (attr, graph.edge_attr)):
            if mine is not None and whole is not None:
                mine[place] = whole[arcs]
    return indptr, indices, weight, attr


def _like(values: Array | None, count: int) -> Array | None:
    """Room for that many of such values."""
    return None if values is None else np.empty((count, *values.shape[1:]), dtype=values.dtype)


def labels_of(graph: Graph, ids: Array) -> dict[str, Array]:
    """Labels and the masks of all splits for some nodes; and the pairs that begin there."""
    fields = ("y", "train_mask", "val_mask", "test_mask")
    arrays = {name: np.ascontiguousarray(getattr(graph, name)[ids]) for name in fields}
    if graph.pairs is not None:
        owned = np.zeros(graph.num_nodes, dtype=np.bool_)
        owned[ids] = True
        index = np.flatnonzero(owned[graph.pairs.ends[:, 0]])
        values = (index, *(values[index] for values in (graph.pairs.ends, graph.pairs.y, graph.pairs.split)))
        arrays |= zip(PAIRS, values, strict=True)
    return arrays


def csr_arrays(rows: Any) -> dict[str, Array]:
    """Sparse rows as the arrays of a part."""
    return {
        "x_indptr": rows.indptr.astype(np.int64),
        "x_indices": rows.indices.astype(np.int32),
        "x_values": np.array(rows.data),
    }


@overload
def cut_parts(
    graph: Graph, assignment: Assignment, rank: None = None, *, features: str = ..., split: int = ...
) -> tuple[Part, ...]: ...
@overload
def cut_parts(graph: Graph, assignment: Assignment, rank: int, *, features: str = ..., split: int = ...) -> Part: ...
def cut_parts(
    graph: Graph, assignment: Assignment, rank: int | None = None, *, features: str = "none", split: int = 0
) -> Part | tuple[Part, ...]:
    """The parts that `write_parts` would write and `open_part` open, without a disk; only one if `rank` is given."""
    if rank is not None and not 0 <= rank < assignment.parts:
        raise InputError(f"rank {rank} of {assignment.parts} parts: ranks run from 0 to {assignment.parts - 1}")
    layout = lay_out(graph, assignment)
    figures = quality(graph, assignment, split, layout=layout)
    manifest = describe(graph, assignment, features=features, split=split, figures=figures, files={})
    scaler = fit_features(graph, features, split)

    def one(part: int) -> Part:
        ids = layout.owned[part]
        x = scaler.apply(graph.x[ids])
        arrays = {**structure_of(graph, layout, part), **labels_of(graph, ids)}
        arrays.update(csr_arrays(x) if sp.issparse(x) else {"x": np.ascontiguousarray(x)})
        arrays = {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}
        return assemble(arrays, part, manifest, split)

    return tuple(one(part) for part in range(assignment.parts)) if rank is None else one(rank)
