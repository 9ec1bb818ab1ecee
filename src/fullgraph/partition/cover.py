"""The fewest rows that serve the edges between two parts: a minimum vertex cover of the bipartite graph of cut edges.

An edge u -> v is served if row u crosses, or if the sum over v's edges from u's part crosses. By König's theorem, a
maximum matching gives the smallest cover.

Legend: R target rows, C halo rows (columns), E edges from halo rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from fullgraph.data import Graph
from fullgraph.data.arrays import Array, at_once
from fullgraph.graph_types import EDGE_TYPE
from fullgraph.partition.base import Assignment
from fullgraph.partition.cut import held_arcs
from fullgraph.partition.layout import Layout, halo_rows, lay_out
from fullgraph.partition.manifest import read_manifest
from fullgraph.partition.part import EDGE_FIELD
from fullgraph.partition.store import open_part

EXACT_EDGES = 1 << 20  # between two parts; for more, the matching takes longer than a second
PRICES = 16  # a bound of the auction: about 1 / PRICES of the matching may be missing
ROUNDS = 200  # of bids
KIND = EDGE_FIELD + EDGE_TYPE


def cover_columns(indptr: Array, indices: Array, counts: tuple[int, ...], *, exact_edges: int = EXACT_EDGES) -> Array:
    """Mask [C] of the halo rows that cross as they are; every other edge is served by a sum.

    indptr, indices: the edges from halo rows, by target row. counts: halo rows by owner, in the order of columns.
    """
    mask = np.zeros(sum(counts), np.bool_)
    edges = sp.csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(len(indptr) - 1, len(mask)))
    by_source, first = edges.tocsc(), 0
    for count in counts:
        if count:
            between = sp.csr_array(by_source[:, first : first + count])
            mask[first : first + count] = _columns(between[np.diff(between.indptr) > 0], exact_edges)
        first += count
    return mask


@dataclass(frozen=True, slots=True)
class CoverCounts:
    """What a part reads under its cover, by owner."""

    rows: Array  # rows and sums that cross
    asked: Array  # entries of their matrix at the owner: one for a row, one per edge of a sum
    left: int  # entries of the reader's matrix: edges from rows that cross, and one for each sum


def count_cover(rows: Array, columns: Array, counts: tuple[int, ...], *, exact_edges: int = EXACT_EDGES) -> CoverCounts:
    """Cover edges from halo rows (columns) into target rows (any numbers). counts: halo rows by owner."""
    rows = np.unique(rows, return_inverse=True)[1]
    order = np.argsort(rows, kind="stable")
    rows, columns = rows[order], columns[order]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=1))]) if len(rows) else np.zeros(1, np.int64)
    alone = cover_columns(indptr, columns, counts, exact_edges=exact_edges)
    owner, ranks = np.repeat(np.arange(len(counts)), counts), len(counts)
    summed = ~alone[columns]
    sums = np.unique(rows[summed] * ranks + owner[columns[summed]]) % ranks
    singles = np.bincount(owner[alone], minlength=ranks)
    return CoverCounts(
        rows=singles + np.bincount(sums, minlength=ranks),
        asked=singles + np.bincount(owner[columns[summed]], minlength=ranks),
        left=int(np.count_nonzero(~summed)) + len(sums),
    )


def covered_rows(graph: Graph, assignment: Assignment, *, exact_edges: int = EXACT_EDGES) -> tuple[int, ...]:
    """The rows and sums that each part reads, if a layer only sums rows; sums are by relation in a typed graph."""
    by_owner = _covered(graph, lay_out(graph, assignment), exact_edges)
    return tuple(int(rows.sum()) for rows in by_owner)


@dataclass(frozen=True, slots=True)
class HostCounts:
    """Rows of one exchange between hosts, and rows and sums if a layer only sums rows.

    alone: every rank asks for its own rows. Else a row crosses once per host, and sums have terms of all its ranks.
    """

    hosts: int
    rows_alone: int
    covered_alone: int
    rows: int
    covered: int


def count_between_hosts(graph: Graph, assignment: Assignment, ranks_per_host: int) -> HostCounts:
    """Count what crosses between hosts of consecutive ranks."""
    layout, ranks = lay_out(graph, assignment), np.arange(assignment.parts)
    host = ranks // ranks_per_host
    between = host[:, None] != host
    by_host = Assignment(
        part=host[assignment.part].astype(np.int32), parts=int(host[-1]) + 1, method=assignment.method, seed=0
    )
    return HostCounts(
        hosts=by_host.parts,
        rows_alone=int(layout.recv_counts[between].sum()),
        covered_alone=int(np.stack(_covered(graph, layout, EXACT_EDGES))[between].sum()),
        rows=halo_rows(graph, by_host),
        covered=sum(covered_rows(graph, by_host)),
    )


def _covered(graph: Graph, layout: Layout, exact_edges: int) -> list[Array]:
    """By part: rows and sums by owner."""

    def of_part(rank: int) -> Array:
        degree = np.diff(graph.indptr)[layout.owned[rank]]
        arcs = held_arcs(graph, layout, rank, int(degree.sum()))
        return _rows_of(degree, arcs["indices"], arcs.get(KIND), tuple(layout.recv_counts[rank].tolist()), exact_edges)

    return list(at_once(of_part, range(layout.parts)))


def covered_rows_in(folder: str | Path) -> tuple[int, ...]:
    """The same of the parts in a folder."""

    def of_part(rank: int) -> int:
        part = open_part(folder, rank, verify=False)
        kinds = part.edge_fields.get(EDGE_TYPE)
        rows = _rows_of(
            np.diff(part.indptr.numpy()), part.indices.numpy(), None if kinds is None else kinds.numpy(),
            part.recv_counts, EXACT_EDGES,
        )  # fmt: skip
        return int(rows.sum())

    return tuple(map(of_part, range(read_manifest(folder).parts)))


def _rows_of(degree: Array, indices: Array, kinds: Array | None, counts: tuple[int, ...], exact_edges: int) -> Array:
    n = len(degree)
    outer = indices >= n
    rows = np.repeat(np.arange(n), degree)[outer]
    if kinds is not None:
        rows = rows + n * kinds[outer].astype(np.int64)
    return count_cover(rows, indices[outer] - n, counts, exact_edges=exact_edges).rows


def _columns(edges: sp.csr_array, exact_edges: int) -> Array:
    """Mask of the columns in the smallest cover that is found; equal covers prefer columns."""
    sources = sp.csr_array(edges.T)
    exact = edges.nnz <= exact_edges
    if exact:
        matched = maximum_bipartite_matching(edges, perm_type="column")
    else:
        matched = auction(edges)
    columns = _koenig(sources, matched)
    if exact:
        return columns
    smallest = min(_size(edges, columns), edges.shape[1], edges.shape[0])
    if smallest == edges.shape[1]:
        return np.ones_like(columns)
    return np.zeros_like(columns) if smallest == edges.shape[0] else columns


def _size(edges: sp.csr_array, columns: Array) -> int:
    rows = np.repeat(np.arange(edges.shape[0]), np.diff(edges.indptr))
    return int(columns.sum()) + len(np.unique(rows[~columns[edges.indices]]))


def _koenig(sources: sp.csr_array, matched: Array) -> Array:
    """The columns that no alternating path from an unmatched column reaches: with the rows that one reaches, a cover.

    sources: the edges by column. matched: each row's column in a matching (-1: none); if it is a largest one, the cover
    is a smallest one, and the same for every largest matching.
    """
    reached_C, reached_R = np.ones(sources.shape[0], np.bool_), np.zeros(sources.shape[1], np.bool_)
    reached_C[matched[matched >= 0]] = False
    front = np.flatnonzero(reached_C)
    while len(front):
        rows = np.unique(sources[front].indices)
        rows = rows[~reached_R[rows]]
        reached_R[rows] = True
        columns = matched[rows]
        front = columns[columns >= 0]
        front = front[~reached_C[front]]
        reached_C[front] = True
    return ~reached_C


def auction(edges: sp.csr_array) -> Array:
    """Each row's column in a matching that is almost the largest one (-1: none), in linear time.

    Every unmatched row bids for its cheapest column. A column accepts its first bidder, becomes more expensive, and its
    former row bids again; a row gives up if all of its columns cost `PRICES`.
    """
    matched = np.full(edges.shape[0], -1)
    holder, price = np.full(edges.shape[1], -1), np.zeros(edges.shape[1], np.int64)
    bidders = np.arange(edges.shape[0])
    for _ in range(ROUNDS):
        if not len(bidders):
            break
        of_bidders = edges[bidders]
        cheapest = np.minimum.reduceat(price[of_bidders.indices] * edges.shape[1] + of_bidders.indices,
                                       of_bidders.indptr[:-1])  # fmt: skip
        column = cheapest % edges.shape[1]
        stays = price[column] < PRICES
        bidders, column = bidders[stays], column[stays]
        column, winner = np.unique(column, return_index=True)
        losers = np.ones(len(bidders), np.bool_)
        losers[winner] = False
        former = holder[column]
        matched[former[former >= 0]] = -1
        holder[column], matched[bidders[winner]] = bidders[winner], column
        price[column] += 1
        bidders = np.concatenate([bidders[losers], former[former >= 0]])
    return matched
