"""The fewest rows that serve the edges between two parts: a minimum vertex cover of the bipartite graph of cut edges.

An edge u -> v is served if row u crosses, or if the sum over v's edges from u's part crosses. By König's theorem, a
maximum matching gives the smallest cover.

Legend: R target rows, C halo rows (columns), E edges from halo rows.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.data.arrays import Array, at_once
from fullgraph.graph_types import EDGE_TYPE
from fullgraph.partition.cut import arcs_of, no_arcs
from fullgraph.partition.layout import Layout
from fullgraph.partition.part import EDGE_FIELD

EXACT_EDGES = 1 << 20  # between two parts; for more, the matching takes longer than a second
PRICES = 32  # a bound of the auction: at most about 1 / PRICES of the matching is missing
ROUNDS = 400  # of bids


def cover_columns(
    indptr: Array, indices: Array, counts: tuple[int, ...], *, exact_edges: int = EXACT_EDGES
) -> Array:
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


def covered_rows(graph: Graph, layout: Layout, *, exact_edges: int = EXACT_EDGES) -> list[int]:
    """The rows and sums that each part reads, if a layer only sums rows; by relation in a typed graph."""

    def of_part(rank: int) -> int:
        n, counts = len(layout.owned[rank]), tuple(layout.recv_counts[rank].tolist())
        degree = np.diff(graph.indptr)[layout.owned[rank]]
        found = [block for _, block in arcs_of(graph, layout, rank)]
        columns = np.concatenate([block["indices"] for block in found]) if found else np.empty(0, np.int32)
        rows = np.repeat(np.arange(n), degree)
        if EDGE_FIELD + EDGE_TYPE in no_arcs(graph):
            rows = rows + n * np.concatenate([block[EDGE_FIELD + EDGE_TYPE] for block in found]).astype(np.int64)
        outer = columns >= n
        rows, columns = np.unique(rows[outer], return_inverse=True)[1], columns[outer] - n
        order = np.argsort(rows, kind="stable")
        rows, columns = rows[order], columns[order]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows))]) if len(rows) else np.zeros(1, np.int64)
        alone = cover_columns(indptr, columns, counts, exact_edges=exact_edges)
        owner = np.repeat(np.arange(len(counts)), counts)
        summed = ~alone[columns]
        return int(alone.sum()) + len(np.unique(rows[summed] * len(counts) + owner[columns[summed]]))

    return at_once(of_part, range(layout.parts))


def _columns(edges: sp.csr_array, exact_edges: int) -> Array:
    """Mask of the columns in the smallest cover that is found; equal covers prefer columns."""
    sources = sp.csr_array(edges.T)
    exact = edges.nnz <= exact_edges
    if exact:
        matched = sp.csgraph.maximum_bipartite_matching(edges, perm_type="column")
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
