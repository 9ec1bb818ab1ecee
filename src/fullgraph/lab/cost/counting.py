"""Row and arc counts of a partitioned graph: from a folder of parts, or estimated for parts that do not exist."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fullgraph.data.arrays import Array
from fullgraph.lab.cost.counts import Counts, LayerCounts, RankCounts
from fullgraph.partition import GraphFacts, Part, SparseRows, open_part, read_manifest
from fullgraph.partition.cover import count_cover
from fullgraph.placement.holding.live import WORTH, Hops, Live, live_rows
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Transport
from fullgraph.transport.ranks import run_threads


def counted(shards: Path, hops: Hops, split: int = 0) -> Counts:
    """Count the parts in a folder. hops: for each layer of a model, its rows' distance from a training node."""
    parts = read_manifest(shards).parts
    return counted_parts([open_part(shards, rank, split=split, verify=False) for rank in range(parts)], hops)


def counted_parts(parts: Sequence[Part], hops: Hops) -> Counts:
    graph = parts[0].manifest.graph
    fewer: list[dict[int, LayerCounts]] = [{} for _ in parts]
    if any(hop is not None for hop in hops):
        of_ranks: list[Live | None] = run_threads(len(parts), _live, parts, hops, timeout=LIVE_S)
        fewer = [_fewer(*pair) for pair in zip(parts, of_ranks, strict=True)]
    whole = _with_sent([_layer(part, len(part.ids), len(part.ids)) for part in parts])
    sent = {layer: _with_sent([of_rank[layer] for of_rank in fewer]) for layer in fewer[0]}
    return Counts(
        graph=graph,
        ranks=tuple(
            RankCounts(
                whole=whole[rank],
                train=int(part.train_mask.sum()),
                fewer={layer: of_ranks[rank] for layer, of_ranks in sent.items()},
            )
            for rank, part in enumerate(parts)
        ),
        entries=sum(int(part.x.indptr[-1]) for part in parts if isinstance(part.x, SparseRows)),
        undirected=all(part.undirected for part in parts),
    )


LIVE_S = 3600.0  # time limit to find the live rows of all parts
MOST_ALONE = 256  # number of equal parts with separate counts; beyond, the first part's counts stand for all


@dataclass(frozen=True, kw_only=True)
class Halo:
    """How the halo of a partition grows with its number of parts P.

    A part reads  rows (P / 2)^rows_power  of all rows of other parts. Of its arcs,
    2 (1 - 1 / P) arcs (P / 2)^arcs_power  come from other parts. Both are shares, so at most one.
    cover: of the smallest covers, for any P: rows and sums per halo row; and per arc from other parts, the entries of
    the reader's matrix and of the owners' matrices. None: unknown, so that all halo rows cross.
    """

    rows: float = 0.2
    rows_power: float = -0.6
    arcs: float = 0.1
    arcs_power: float = 0.1
    cover: tuple[float, float, float] | None = None

    @classmethod
    def fitted(cls, cuts: Sequence[Counts]) -> "Halo":
        """Fit the curve to some partitions of one graph, by least squares of logarithms."""
        parts = np.array([len(counts.ranks) for counts in cuts])

        def power(shares: Array) -> tuple[float, float]:
            logs, sizes = np.log(np.maximum(shares, 1e-9)), np.log(parts / 2)
            slope = float(np.polyfit(sizes, logs, 1)[0]) if len(set(parts.tolist())) > 1 else 0.0
            return float(np.exp(np.mean(logs - slope * sizes))), slope

        wholes = [[rank.whole for rank in counts.ranks] for counts in cuts]
        halo = np.array([sum(whole.halo for whole in of) for of in wholes])
        outer = np.array([sum(whole.outer for whole in of) for of in wholes])
        rows = power(halo / (cuts[0].graph.nodes * (parts - 1)))
        arcs = power(outer / max(1, cuts[0].arcs) / (2 * (1 - 1 / parts)))
        covers = [whole.covered for of in wholes for whole in of if whole.covered is not None]
        each, edges = max(1, int(halo.sum())), max(1, int(outer.sum()))
        of_cover = (
            sum(cover.halo for cover in covers) / each,
            sum(cover.outer for cover in covers) / edges,
            sum(cover.asked for cover in covers) / edges,
        )
        return cls(rows=rows[0], rows_power=rows[1], arcs=arcs[0], arcs_power=arcs[1], cover=of_cover)

    def at(self, parts: int) -> tuple[float, float]:
        """The shares for P parts: of other parts' rows that a part reads, and of its arcs that come from there."""
        grown = parts / 2
        arcs = 2 * (1 - 1 / parts) * self.arcs * grown**self.arcs_power
        return min(1.0, self.rows * grown**self.rows_power), min(1.0, arcs)


def even(graph: GraphFacts, parts: int, halo: Halo, *, train: float = 0.6, hops: Hops = ()) -> Counts:
    """A graph in equal parts; each part reads the same number of rows from every other part.

    train: the share of training nodes; if it is small, layers compute fewer rows, as if arcs were drawn at random.
    """
    rows, arcs = graph.nodes // parts, graph.arcs // parts
    row_share, arc_share = halo.at(parts) if parts > 1 else (0.0, 0.0)
    each = int(rows * row_share)  # rows that a part reads from each other part

    def layer(rank: int, targets: int, sources: int) -> LayerCounts:
        part = targets / max(1, rows)
        outer = int(arcs * part * arc_share)
        read = int(min(each, outer // max(1, parts - 1)) * min(1.0, 2 * part))
        of = tuple(0 if peer == rank else read for peer in range(parts))
        counts = LayerCounts(
            targets=targets, sources=sources, inner=int(arcs * part) - outer, outer=outer, sent=of, read=of
        )  # fmt: skip
        if halo.cover is None:
            return counts
        fewer, left, asked = halo.cover
        some = tuple(int(rows * fewer) for rows in of)
        covered = replace(counts, outer=int(outer * left), sent=some, read=some, asked=int(outer * asked))
        return replace(counts, covered=covered)

    def of_rank(rank: int) -> RankCounts:
        fewer, sources = {}, rows
        for index, hop in enumerate(hops):
            share = 1.0 if hop is None else _reached(train, graph.arcs / graph.nodes, hop)
            targets = int(rows * share) if share <= WORTH else rows
            if targets < rows:
                fewer[index] = layer(rank, targets, sources)
            sources = targets
        return RankCounts(whole=layer(rank, rows, rows), train=int(rows * train), fewer=fewer)

    ranks = [of_rank(rank) for rank in range(min(parts, MOST_ALONE))]
    return Counts(graph=graph, ranks=tuple(ranks) + (ranks[0],) * (parts - len(ranks)), even=True)


def _reached(train: float, degree: float, hop: int) -> float:
    """The expected share of nodes within `hop` hops of a training node, if arcs were drawn at random."""
    share = train
    for _ in range(hop):
        share = 1 - (1 - share) * (1 - share) ** degree
    return share


def _live(transport: Transport, parts: Sequence[Part], hops: Hops) -> Live | None:
    part = parts[transport.rank]
    dtype = part.x.dtype if isinstance(part.x, Tensor) else torch.float32
    return live_rows(RankGraph.of_part(part, dtype), hops, transport)


def _fewer(part: Part, live: Live | None) -> dict[int, LayerCounts]:
    """Counts of the layers that do not compute all rows of a part."""
    if live is None:
        return {}
    level, hops = live.level_n.numpy(), live.hops
    order = np.argsort(level, kind="stable")
    targets = [len(level) if hop is None else int((level <= hop).sum()) for hop in hops]
    return {
        layer: _layer(part, rows, read, order)
        for layer, (read, rows) in enumerate(pairwise([len(level), *targets]))
        if hops[layer] is not None
    }


def _layer(part: Part, targets: int, sources: int, order: Array | None = None) -> LayerCounts:
    """Counts of a layer that computes the first rows of an order; `sent` has zeros until peers are counted."""
    computed = np.ones(len(part.ids), bool)
    if order is not None:
        computed[order[targets:]] = False
    degree = np.diff(part.indptr.numpy())
    of_computed = np.repeat(computed, degree)
    columns = part.indices.numpy()[of_computed]
    from_halo = columns >= len(part.ids)
    outer = columns[from_halo] - len(part.ids)
    seen = np.zeros(len(part.halo_ids), bool)
    seen[outer] = True
    owner = np.repeat(np.arange(part.parts), part.recv_counts)
    cover = count_cover(np.repeat(np.arange(len(degree)), degree)[of_computed][from_halo], outer, part.recv_counts)
    none = (0,) * part.parts
    inner = len(columns) - len(outer)
    covered = LayerCounts(
        targets=targets, sources=sources, inner=inner, outer=cover.left, sent=none,
        read=tuple(cover.rows.tolist()), asks=tuple(cover.asked.tolist()),
    )  # fmt: skip
    return LayerCounts(
        targets=targets,
        sources=sources,
        inner=inner,
        outer=len(outer),
        sent=none,
        read=tuple(np.bincount(owner[seen], minlength=part.parts).tolist()),
        covered=covered,
    )


def _with_sent(layers: Sequence[LayerCounts]) -> list[LayerCounts]:
    """The counts of one layer on all ranks, with the rows that each rank sends: those that its peers read."""
    found = [counts.covered for counts in layers if counts.covered is not None]
    covers = _with_sent(found) if found else [None] * len(layers)
    return [
        replace(
            counts,
            sent=tuple(peer.read[rank] for peer in layers),
            asked=sum(peer.asks[rank] for peer in layers if peer.asks),
            covered=cover,
        )
        for rank, (counts, cover) in enumerate(zip(layers, covers, strict=True))
    ]
