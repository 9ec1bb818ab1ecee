"""The layout of parts: which part owns each node and which parts read it; and its quality: halo rows and balance.

Legend: N nodes, n owned rows, h halo rows of a part, T node types, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fullgraph.data import Graph
from fullgraph.data.arrays import Array, at_once
from fullgraph.errors import InputError
from fullgraph.graph_types import NODE_TYPE, TypeShare
from fullgraph.partition.base import Assignment
from fullgraph.values import Value

BLOCK_ARCS = 1 << 22
INT32_MAX = 2**31 - 1  # rows and columns of a part have 32-bit numbers


@dataclass(frozen=True, eq=False)
class Layout:
    """Owned and halo ids of every part, and each node's row at its owner.

    halo[p] = { u : an arc u -> v with part[v] = p and part[u] != p },  grouped by owner, ascending within a group.
    """

    owned: tuple[Array, ...]  # int64 [n] per part, ascending
    halo: tuple[Array, ...]  # int64 [h] per part
    recv_counts: Array  # int64 [parts, parts]: halo rows of p that q owns
    cut_arcs: Array  # int64 [parts]: arcs into p from other parts
    row: Array  # int32 [N]: local row of a node at its owner
    position: Array | None  # int64 [N]: the position of the assignment

    @property
    def parts(self) -> int:
        return len(self.owned)

    def halo_from(self, rank: int, owner: int) -> Array:
        """Return the halo ids of `rank` that `owner` owns."""
        start = int(self.recv_counts[rank, :owner].sum())
        return self.halo[rank][start : start + int(self.recv_counts[rank, owner])]


def lay_out(graph: Graph, assignment: Assignment) -> Layout:
    """Return the layout of an assignment; several parts are computed at the same time."""
    owned, row = owned_rows(graph, assignment)
    part, parts = assignment.part, assignment.parts

    def reads_of(rank: int) -> tuple[Array, Array, int]:
        """Return a part's halo, its size by owner, and the number of cut arcs; a single part has no halo."""
        ids, cut_arcs = owned[rank], 0
        read = np.zeros(graph.num_nodes, dtype=np.bool_)
        for _, arcs in arc_blocks(graph.indptr, ids) if parts > 1 else ():
            source = graph.indices[arcs]
            read[source] = True
            cut_arcs += int(np.count_nonzero(part[source] != rank))
        read[ids] = False
        remote = np.flatnonzero(read)
        owner = part[remote]
        return remote[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=parts), cut_arcs

    halo, recv_counts, cut_arcs = zip(*at_once(reads_of, range(parts)), strict=True)
    return Layout(owned, halo, np.stack(recv_counts), np.array(cut_arcs), row, assignment.position)


def halo_rows(graph: Graph, assignment: Assignment) -> int:
    """Return the sum of all parts' halo rows, which is the volume of one exchange."""
    return sum(len(ids) for ids in lay_out(graph, assignment).halo)


def owned_rows(graph: Graph, assignment: Assignment) -> tuple[tuple[Array, ...], Array]:
    """Return the owned ids of every part, and each node's row within its part."""
    part, parts = assignment.part, assignment.parts
    if len(part) != graph.num_nodes:
        raise InputError(f"the assignment has {len(part)} entries for {graph.num_nodes} nodes: partition this graph")
    # 16-bit keys use radix sort, which is several times faster.
    order = np.argsort(part.astype(np.uint16) if parts < 1 << 16 else part, kind="stable")
    count = np.bincount(part, minlength=parts)
    ends = np.cumsum(count)
    if count.max(initial=0) > INT32_MAX:
        raise InputError(f"a part of {count.max()} nodes has more rows than 32 bits can number; use more parts")
    owned = tuple(order[end - size : end] for end, size in zip(ends, count, strict=True))
    row = np.empty(len(part), dtype=np.int32)
    for ids in owned:
        row[ids] = np.arange(len(ids))
    return owned, row


def arc_blocks(indptr: Array, rows: Array) -> Iterator[tuple[slice, Array | slice]]:
    """Yield the arcs of `rows` in order, a few million at a time: (position in this order, position in the graph)."""
    start = indptr[rows]
    length = indptr[rows + 1] - start
    end = np.cumsum(length)
    total = int(end[-1]) if len(rows) else 0
    if total and int(rows[-1]) - int(rows[0]) == len(rows) - 1:
        # Consecutive rows form a slice and need no index.
        first = int(start[0])
        for low in range(0, total, BLOCK_ARCS):
            high = min(low + BLOCK_ARCS, total)
            yield slice(low, high), slice(first + low, first + high)
        return
    stops = np.searchsorted(end, np.arange(BLOCK_ARCS, total, BLOCK_ARCS)) + 1
    bounds = np.unique(np.concatenate([[0], stops, [len(rows)]]))
    for low, high in pairwise(bounds.tolist()):
        before = int(end[low - 1]) if low else 0
        after = int(end[high - 1])
        shift = start[low:high] - (end[low:high] - length[low:high])
        yield slice(before, after), np.arange(before, after) + np.repeat(shift, length[low:high])


@dataclass(frozen=True)
class Quality(Value):
    """halo_rows = sum over parts p of |{ u not in p : an arc u -> v, v in p }|;  imbalance = max / mean over parts.

    edge_cut counts arcs (directed edges) whose two ends have different owners, so an undirected edge counts twice.
    """

    edge_cut: int
    halo_rows: int
    nodes: tuple[int, ...]  # owned, per part
    edges: tuple[int, ...]  # arcs into owned nodes, per part
    halo: tuple[int, ...]  # halo rows, per part
    train: tuple[int, ...]  # owned training nodes, per part
    edge_imbalance: float
    node_imbalance: float
    types: tuple[TypeShare, ...] = ()  # of a typed graph


def quality(graph: Graph, assignment: Assignment, split: int = 0, *, layout: Layout | None = None) -> Quality:
    """Return the figures of an assignment; training nodes are those of `split`."""
    if not 0 <= split < graph.num_splits:
        raise InputError(f"split {split} does not exist: choose from 0 to {graph.num_splits - 1}")
    laid = lay_out(graph, assignment) if layout is None else layout
    degree = np.diff(graph.indptr)
    nodes = [len(ids) for ids in laid.owned]
    edges = [int(degree[ids].sum()) for ids in laid.owned]
    train = np.bincount(assignment.part[graph.train_mask[:, split]], minlength=assignment.parts)
    halo = [len(ids) for ids in laid.halo]
    return Quality(
        edge_cut=int(laid.cut_arcs.sum()),
        halo_rows=sum(halo),
        nodes=tuple(nodes),
        edges=tuple(edges),
        halo=tuple(halo),
        train=tuple(int(count) for count in train),
        edge_imbalance=_imbalance(np.asarray(edges)),
        node_imbalance=_imbalance(np.asarray(nodes)),
        types=_by_type(graph, laid),
    )


def _by_type(graph: Graph, laid: Layout) -> tuple[TypeShare, ...]:
    if not graph.types:
        return ()
    kind = graph.fields.nodes[NODE_TYPE]
    nodes_TP, halo_TP = (
        np.stack([np.bincount(kind[ids], minlength=len(graph.types.nodes)) for ids in held], axis=1)
        for held in (laid.owned, laid.halo)
    )
    return tuple(
        TypeShare(fact.name, tuple(nodes.tolist()), tuple(halo.tolist()), _imbalance(nodes))
        for fact, nodes, halo in zip(graph.types.nodes, nodes_TP, halo_TP, strict=True)
    )


def _imbalance(share: Array) -> float:
    mean = float(share.mean())
    return float(share.max()) / mean if mean > 0 else 1.0
