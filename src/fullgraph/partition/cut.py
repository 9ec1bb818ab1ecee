"""Cut a graph into parts: pure functions from (graph, assignment) to each part's local arrays.

Legend: n owned rows, h halo rows, e arcs into owned rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, overload

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph, fit_features
from fullgraph.data.arrays import Array
from fullgraph.data.splits import MASKS
from fullgraph.errors import InputError
from fullgraph.partition.base import Assignment
from fullgraph.partition.layout import INT32_MAX, Layout, arc_blocks, lay_out, quality
from fullgraph.partition.manifest import describe
from fullgraph.partition.part import EDGE_FIELD, NODE_FIELD, PAIRS, Part, SparseRows, assemble


def structure_of(graph: Graph, layout: Layout, rank: int) -> dict[str, Array]:
    """Return a part's ids, routes and row starts.

    The rows sent to peer q are the local rows of  halo_from(q, rank),  so both ends know their order without
    communication.
    """
    ids, halo = layout.owned[rank], layout.halo[rank]
    n, h = len(ids), len(halo)
    if n + h > INT32_MAX:
        raise InputError(f"part {rank} reads {n + h} rows, more than 32 bits can number; use more parts")
    sent = [layout.row[layout.halo_from(peer, rank)] for peer in range(layout.parts)]
    arrays = {
        "ids": ids.astype(np.int64),
        "halo_ids": halo.astype(np.int64),
        "indptr": graph.indptr if layout.parts == 1 else _indptr_of(graph, ids),
        "recv_counts": layout.recv_counts[rank].copy(),
        "send_counts": layout.recv_counts[:, rank].copy(),
        "send_rows": np.concatenate(sent).astype(np.int64),
    }
    if layout.position is not None:
        arrays["position"] = layout.position[ids]
    return arrays


def _indptr_of(graph: Graph, ids: Array) -> Array:
    indptr = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(graph.indptr[ids + 1] - graph.indptr[ids], out=indptr[1:])
    return indptr


def no_arcs(graph: Graph) -> dict[str, Array]:
    """Return empty arrays of the data that arcs have: local columns, and the graph's weights and features, if any."""
    held = _arrays_of_arcs(graph) | {"indices": np.empty(0, dtype=np.int32)}
    return {name: values[:0] for name, values in held.items()}


def _arrays_of_arcs(graph: Graph) -> dict[str, Array]:
    held = {"indices": graph.indices, "weight": graph.edge_weight, "edge_attr": graph.edge_attr}
    held |= {EDGE_FIELD + name: values for name, values in graph.fields.edges.items()}
    return {name: values for name, values in held.items() if values is not None}


def arcs_of(graph: Graph, layout: Layout, rank: int) -> Iterator[tuple[slice, dict[str, Array]]]:
    """Yield a part's arcs over local columns, a few million at a time: (position in the part, arrays).

    Local column of a source: its row if `rank` owns it, else n + its position in halo_ids. With a single part, the arcs
    are the graph's own arrays, not a copy.
    """
    ids, halo = layout.owned[rank], layout.halo[rank]
    whole = _arrays_of_arcs(graph)
    column = None
    if layout.parts > 1:
        column = layout.row.copy()
        column[halo] = np.arange(len(ids), len(ids) + len(halo))
    for place, arcs in arc_blocks(graph.indptr, ids):
        block = {name: values[arcs] for name, values in whole.items()}
        local = block["indices"] if column is None else column[block["indices"]]
        yield place, block | {"indices": local.astype(np.int32, copy=False)}


def held_arcs(graph: Graph, layout: Layout, rank: int, count: int) -> dict[str, Array]:
    held = {name: np.empty((count, *kind.shape[1:]), kind.dtype) for name, kind in no_arcs(graph).items()}
    for place, block in arcs_of(graph, layout, rank):
        for name, values in block.items():
            held[name][place] = values
    return held


def labels_of(graph: Graph, ids: Array) -> dict[str, Array]:
    """Return labels and the masks of all splits for some nodes, and the pairs whose first node is one of them."""
    fields = ("y", *MASKS)
    arrays = {name: np.ascontiguousarray(getattr(graph, name)[ids]) for name in fields}
    arrays |= {NODE_FIELD + name: np.ascontiguousarray(rows[ids]) for name, rows in graph.fields.nodes.items()}
    if graph.pairs is not None:
        owned = np.zeros(graph.num_nodes, dtype=np.bool_)
        owned[ids] = True
        index = np.flatnonzero(owned[graph.pairs.ends[:, 0]])
        values = (index, *(values[index] for values in (graph.pairs.ends, graph.pairs.y, graph.pairs.split)))
        arrays |= zip(PAIRS, values, strict=True)
    return arrays


def csr_arrays(rows: Any) -> dict[str, Array]:
    """Return sparse rows as the arrays of a part."""
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
    """Return the parts that `write_parts` would write, in memory; only one part if `rank` is given."""
    if rank is not None and not 0 <= rank < assignment.parts:
        raise InputError(f"rank {rank} of {assignment.parts} parts: ranks run from 0 to {assignment.parts - 1}")
    layout = lay_out(graph, assignment)
    figures = quality(graph, assignment, split, layout=layout)
    manifest = describe(graph, assignment, features=features, split=split, figures=figures, files={})
    scaler = fit_features(graph, features, split)

    def one(part: int) -> Part:
        ids = layout.owned[part]
        x = scaler.apply(graph.x[ids])
        arrays = structure_of(graph, layout, part) | labels_of(graph, ids)
        arrays |= held_arcs(graph, layout, part, int(arrays["indptr"][-1]))
        arrays.update(csr_arrays(x) if sp.issparse(x) else {"x": np.ascontiguousarray(x)})
        arrays = {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}
        return assemble(arrays, part, manifest, split)

    return tuple(one(part) for part in range(assignment.parts)) if rank is None else one(rank)


def whole_part(graph: Graph) -> Part:
    """The graph as one part, whose dense features are a shape without memory."""
    import torch

    assignment = Assignment(np.zeros(graph.num_nodes, np.int32), 1, "one part", 0)
    layout = lay_out(graph, assignment)
    manifest = describe(graph, assignment, features="none", split=0, figures=quality(graph, assignment, 0), files={})
    arrays = structure_of(graph, layout, 0) | labels_of(graph, layout.owned[0])
    arrays |= held_arcs(graph, layout, 0, graph.num_arcs)
    arrays |= {"x": np.empty((0, graph.num_features), graph.x.dtype)}
    part = assemble({name: a if a.flags.writeable else a.copy() for name, a in arrays.items()}, 0, manifest, 0)
    assert not isinstance(part.x, SparseRows)
    shape = torch.empty(graph.num_nodes, graph.num_features, dtype=part.x.dtype, device="meta")
    return replace(part, x=shape)
