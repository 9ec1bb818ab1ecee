"""The streaming partitioner: its memory grows with nodes only. It reads arcs in order, also from a file.

Legend: N nodes, P parts or clusters, T node types (one, unless loads are kept by type).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.data.arrays import Array, at_once
from fullgraph.graph_types import NODE_TYPE
from fullgraph.partition.base import RUN_ARCS, Balanced, Imbalance, Weight, require, row_runs
from fullgraph.partition.metis import RECURSIVE_PARTS, adjacency_of, metis_parts
from fullgraph.proc import num_cores
from fullgraph.values import Range

# These settings cut the fewest arcs on the average of 18 graphs, most of them real, into 4, 8 and 16 parts.
FEWEST = 8  # minimum clusters per part: fewer leave METIS little choice
CLUSTER_PASSES = 4
CLUSTER_ROOM = 4  # maximum load of a cluster, in means
CLUSTER_PRICE = 0.1  # the price of load in a cluster, as a share of that in a part: clusters may be uneven
SETTLED = 0.001  # stop when at most this share of nodes moves in a pass
MEAN_WEIGHT = 1000  # weights are integers, so that loads are exact
PASSES, IMBALANCE = 10, 0.03
# Lanes depend on the graph alone, so every machine cuts it alike.
MANY_ARCS, MANY_NODES, LANES = 1 << 24, 1 << 17, 16
ROUNDS = 64  # minimum rounds of a pass in several lanes: a lane knows the other lanes' moves of earlier rounds


@dataclass(frozen=True)
class Fennel(Balanced):
    """Places one node after another in the part that holds most of its neighbours, minus a price for the part's load.

    argmax_p  |N(i) in p| - 1.5 alpha w_i sqrt(load_p),   alpha = m sqrt(P) / N^1.5,   load_p + w_i <= cap,
    m edges, w = a + b * degree in units of its mean (Tsourakakis et al., WSDM 2014). Nodes come in their given order,
    at most `passes` times (restreaming: Nishimura & Ugander, KDD 2013), until few of them move.

    With several `lanes`, nodes are split into as many runs, which different cores place at the same time, and which
    learn about each other's moves 64 times or more per pass. A lane fills at most its share of the room that is left in
    a part. The result depends on the lanes, but not on the number of cores. 0: 16 lanes for more than 17 million arcs
    and 131,000 nodes, else one.

    Before that, the same rule grows `clusters` clusters, and METIS groups them into parts, so that nodes start near
    their final place (Akhremtsev, Sanders & Schulz, arXiv:1404.4887). With clusters=0, and for graphs with fewer than
    eight clusters per part, the first pass starts without parts.
    """

    clusters: Annotated[int, Range(0, 4096)] = 1024
    passes: Annotated[int, Range(1, 1000)] = PASSES
    imbalance: Imbalance = IMBALANCE
    lanes: Annotated[int, Range(0, 256)] = 0
    node_weight: Weight | None = None
    degree_weight: Weight = 1.0

    def search(self, graph: Graph, parts: int, seed: int) -> Array:
        rows = _Rows(graph, self.node_weight, self.degree_weight, lanes=self.lanes)
        clusters = min(self.clusters, graph.num_nodes // 2)
        if clusters < FEWEST * parts:
            return self._streamed(rows, np.full(graph.num_nodes, -1, dtype=np.int32), parts)
        return self._by_clusters(rows, clusters, parts, seed)

    def _streamed(self, rows: _Rows, part: Array, parts: int) -> Array:
        return _streamed(rows, part, parts, self.passes, self.imbalance)

    def _by_clusters(self, rows: _Rows, clusters: int, parts: int, seed: int) -> Array:
        """Return the better of two partitions. The second uses the first to remove misplaced nodes from clusters."""

        def cut(passes: int) -> Array:
            load = _grown(rows, cluster, clusters, passes)
            part = _grouped(rows.links(cluster, clusters), load, parts, seed)[cluster]
            return self._streamed(rows, part, parts)

        stride = rows.num_nodes // clusters
        cluster = np.full(rows.num_nodes, -1, dtype=np.int32)
        cluster[seed % stride :: stride][:clusters] = np.arange(clusters)
        first = cut(CLUSTER_PASSES)
        rows.leave_strangers(cluster, clusters, first, parts)
        return min(first, cut(CLUSTER_PASSES // 2), key=lambda part: int(rows.links(part, parts).sum()))


def shared_by_type(graph: Graph, part: Array, parts: int, how: Balanced) -> Array:
    """Return parts with equal shares of every node type, made from the parts of a partitioner that ignores types.

    They are improved by the rule of `Fennel`, with a load, m, N and mean degree for each type. So the weight of each
    type is balanced, and thereby the weight of all nodes.
    """
    rows = _Rows(graph, how.node_weight, how.degree_weight, by_type=True, lanes=getattr(how, "lanes", 0))
    return _streamed(rows, part.copy(), parts, PASSES, getattr(how, "imbalance", IMBALANCE))


def _streamed(rows: _Rows, part: Array, parts: int, passes: int, imbalance: float) -> Array:
    """Improve `part` in place by passes over all nodes, until few of them move."""
    sweep = _Sweep(rows, part, parts)
    for _ in range(passes):
        if sweep.run(room=1 + imbalance) <= SETTLED * rows.num_nodes:
            break
    if len(rows.lanes) > 1 and (sweep.load > (1 + imbalance) * sweep.total[:, None] / parts).any():
        _Sweep(rows.in_one_lane(), part, parts).run(room=1 + imbalance)  # lanes gave nodes without room to one part
    return part


class _Rows:
    """A graph's rows, which are read in order, and the weights of its nodes."""

    def __init__(
        self, graph: Graph, node_weight: float | None, degree_weight: float, *, by_type: bool = False, lanes: int = 1
    ) -> None:
        require("numba", "numba")
        from fullgraph.partition import fennel_loops

        self.loops: Any = fennel_loops
        self.arrays = graph.indptr, graph.indices
        self.runs = list(row_runs(graph.indptr))
        self.num_nodes = graph.num_nodes
        large = graph.num_arcs > MANY_ARCS and graph.num_nodes > MANY_NODES
        lanes = min(graph.num_nodes, lanes or (LANES if large else 1))
        self.lanes, self.rounds = _lanes(graph.indptr, lanes)
        bounds = np.array(graph.types.starts if by_type else (0, graph.num_nodes))
        self.kind: Array = graph.fields.nodes[NODE_TYPE] if by_type else np.empty(0, dtype=np.int16)
        self.nodes = np.maximum(1, np.diff(bounds))  # an empty type has no loads
        arcs = np.diff(graph.indptr[bounds])
        mean = arcs / self.nodes
        a = np.maximum(1.0, mean) if node_weight is None else np.full(len(mean), float(node_weight))
        scale = MEAN_WEIGHT / np.maximum(a + degree_weight * mean, 1e-9)
        self.weighing = a * scale, degree_weight * scale
        twisted = at_once(lambda run: int(fennel_loops.lopsided(*self.arrays, *run)), self.runs)
        self.directed = sum(twisted) % (1 << 64) != 0
        self.num_edges = arcs if self.directed else arcs / 2

    def in_one_lane(self) -> _Rows:
        one = copy(self)
        one.lanes, one.rounds = _lanes(self.arrays[0], 1)
        return one

    def links(self, part: Array, parts: int) -> Array:
        """Return the number of arcs from each part to each other part, [P, P]; zero on the diagonal."""
        groups = [self.runs[at :: num_cores()] for at in range(min(len(self.runs), num_cores()))]

        def of(runs: list[tuple[int, int]]) -> Array:
            links = np.zeros((parts, parts), dtype=np.int64)
            for run in runs:
                self.loops.add_links(*self.arrays, *run, part, links)
            return links

        return sum(at_once(of, groups), np.zeros((parts, parts), dtype=np.int64))

    def leave_strangers(self, cluster: Array, clusters: int, part: Array, parts: int) -> None:
        """Remove nodes from a cluster unless they are in the part that holds most of the cluster."""
        shared = np.zeros(clusters * parts, dtype=np.int64)
        for first, last in self.runs:
            pair = cluster[first:last].astype(np.int64) * parts + part[first:last]
            shared += np.bincount(pair, minlength=clusters * parts)
        home = shared.reshape(clusters, parts).argmax(axis=1)
        for first, last in self.runs:
            cluster[first:last][home[cluster[first:last]] != part[first:last]] = -1


def _lanes(indptr: Array, lanes: int) -> tuple[list[tuple[int, int]], list[list[tuple[int, int]]]]:
    """Split all rows into lanes of consecutive rows; return them, and the rows of every lane in each round.

    Shares are equal in arcs plus rows.
    """
    if lanes == 1:
        return [(0, len(indptr) - 1)], [[run] for run in row_runs(indptr)]
    rounds = max(ROUNDS, -(-int(indptr[-1]) // RUN_ARCS))
    work = np.arange(len(indptr))
    work += indptr
    ends = np.searchsorted(work, np.linspace(0, int(work[-1]), lanes * rounds + 1).astype(np.int64))
    ends[0], ends[-1] = 0, len(indptr) - 1
    lane = list(pairwise(ends[::rounds].tolist()))
    pieces = list(pairwise(ends.tolist()))
    return lane, [pieces[at::rounds] for at in range(rounds)]


class _Sweep:
    """Passes over all rows that move nodes between parts. Passes share the parts' loads and the readers' votes.

    Every lane has its own view of the loads during a round. After it, lanes learn each other's moves.
    """

    def __init__(self, rows: _Rows, part: Array, parts: int) -> None:
        self.rows, self.part = rows, part
        types, lanes = len(rows.nodes), len(rows.lanes)
        self.load = np.zeros((types, parts), dtype=np.int64)
        self._count = np.zeros((lanes, parts), dtype=np.int64)
        self._light = np.zeros((lanes, types, 2), dtype=np.int64)
        voters = rows.num_nodes if rows.directed else 0
        self._vote, self._votes = np.full(voters, -1, dtype=np.int32), np.zeros(voters, dtype=np.int32)
        self.total = np.zeros(types, dtype=np.int64)
        rows.loops.add_weights(rows.arrays[0], rows.kind, *rows.weighing, part, self.load, self.total)
        self._seen = part if lanes == 1 else part.copy()
        self._told = [np.empty((2, self._most_told(lane)), rows.arrays[1].dtype) for lane in range(lanes)]

    def _most_told(self, lane: int) -> int:
        """Return the largest number of arcs of a lane in a round, if they may be votes for other lanes."""
        if not self.rows.directed or len(self.rows.lanes) == 1:
            return 0
        first, last = np.array([pieces[lane] for pieces in self.rows.rounds]).T
        return int((self.rows.arrays[0][last] - self.rows.arrays[0][first]).max())

    def run(self, *, room: float, price: float = 1.0, everyone: bool = True) -> int:
        """Move each node to its best part of at most `room` times the mean load; return how many moved."""
        rows, parts = self.rows, self.load.shape[1]
        cap, mean = room * self.total / parts, np.maximum(1, self.total) / rows.nodes
        alpha = rows.num_edges * parts**0.5 / rows.nodes**1.5
        per_weight = price * 1.5 * alpha / mean**1.5
        lanes = range(len(rows.lanes))
        moved = 0
        with ThreadPoolExecutor(min(len(lanes), num_cores()), thread_name_prefix="fullgraph-lanes") as pool:
            on_all = map if len(lanes) == 1 else pool.map
            for pieces in rows.rounds:
                loads = [self.load if len(lanes) == 1 else self.load.copy() for _ in lanes]
                limit = self.load + (cap[:, None] - self.load) / len(lanes) if len(lanes) > 1 else _every(cap, parts)

                def place(lane: int, pieces: Any = pieces, loads: Any = loads, limit: Array = limit) -> tuple[int, int]:
                    return rows.loops.place(  # type: ignore[no-any-return]
                        *rows.arrays, *pieces[lane], rows.lanes[lane], rows.kind, *rows.weighing, self.part,
                        self._seen, loads[lane], limit, per_weight, everyone, self._count[lane], self._vote,
                        self._votes, self._light[lane], self._told[lane],
                    )  # fmt: skip

                counts = list(on_all(place, lanes))
                moved += sum(count for count, _ in counts)
                if len(lanes) > 1:
                    self._meet(pieces, loads, [told for _, told in counts], on_all)
        return moved

    def _meet(self, pieces: list[tuple[int, int]], loads: list[Array], told: list[int], on_all: Any) -> None:
        """Let all lanes know the moves of a round, and count its votes in the order of the lanes."""
        self.load += sum((load - self.load for load in loads), np.zeros_like(self.load))
        rows = self.rows

        def hear(lane: int) -> None:
            first, last = pieces[lane]
            self._seen[first:last] = self.part[first:last]
            for votes, count in zip(self._told, told, strict=True):
                if count:
                    rows.loops.hear(votes, count, rows.lanes[lane], self._vote, self._votes)

        list(on_all(hear, range(len(rows.lanes))))


def _every(cap: Array, parts: int) -> Array:
    return np.repeat(cap[:, None], parts, axis=1)


def _grown(rows: _Rows, cluster: Array, clusters: int, passes: int) -> Array:
    """Add nodes without a cluster to clusters; return the clusters' loads."""
    sweep = _Sweep(rows, cluster, clusters)
    for turn in range(passes):
        # Nodes without neighbours in a cluster wait for the last pass: added early, they would attract others.
        sweep.run(room=CLUSTER_ROOM, price=CLUSTER_PRICE, everyone=turn == passes - 1)
    load: Array = sweep.load[0]
    return load


def _grouped(links: Array, load: Array, parts: int, seed: int) -> Array:
    """Return the part of every cluster, by METIS; -1 for all if no arc joins two clusters."""
    links += links.T.copy()
    if not links.any():
        return np.full(len(load), -1, dtype=np.int32)
    between = sp.csr_array(links)
    weight = np.maximum(1, load * (MEAN_WEIGHT * len(load)) // load.sum())
    return metis_parts(
        adjacency_of(between.indptr, between.indices), weight, parts, seed=seed, recursive=parts <= RECURSIVE_PARTS,
        arc_weight=between.data,
    )  # fmt: skip
