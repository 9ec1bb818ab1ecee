"""Counts of a graph that is cut: of its parts as they lie in a folder, or of parts that nobody has cut yet."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.partition import Part, read_manifest, open_part
from fullgraph.placement.counts import Counts, LayerCounts, RankCounts
from fullgraph.placement.holding.live import WORTH, Hops


def counted(shards: Path, hops: Hops, split: int = 0) -> Counts:
    """Of the parts in a folder. hops: how far from a training node a layer's rows are read, as a model has it."""
    manifest = read_manifest(shards)
    parts = [open_part(shards, rank, split=split, verify=False) for rank in range(manifest.parts)]
    wholes = [_layer(part, len(part.ids), len(part.ids)) for part in parts]
    wanted = [hop for hop in hops if hop is not None]
    fewer: list[dict[int, tuple[LayerCounts, Array]]] = [{} for _ in parts]
    if wanted:
        levels = _levels(parts, manifest.graph.nodes, max(wanted))
        hops = _worthwhile(parts, levels, hops)
        fewer = [_fewer(part, level, hops) for part, level in zip(parts, levels, strict=True)]
    return Counts(
        graph=manifest.graph,
        ranks=tuple(
            RankCounts(whole=whole, train=int(part.train_mask.sum()), fewer=_with_sent(fewer, rank))
            for rank, (part, (whole, _)) in enumerate(zip(parts, wholes, strict=True))
        ),
        entries=sum(int(part.x.indptr[-1]) for part in parts) if manifest.graph.sparse else 0,  # type: ignore[union-attr]
        undirected=all(part.undirected for part in parts),
    )


def _levels(parts: Sequence[Part], nodes: int, deepest: int) -> list[Array]:
    """By part, how many hops every row is from a training node that reads it; deepest + 1 if it is farther."""
    level = np.full(nodes, deepest + 1, np.int8)
    for part in parts:
        level[part.ids.numpy()[part.train_mask.numpy()]] = 0
    for hop in range(1, deepest + 1):
        read = np.zeros(nodes, bool)
        for part in parts:
            ids = np.concatenate([part.ids.numpy(), part.halo_ids.numpy()])
            near = level[part.ids.numpy()] < hop
            read[ids[part.indices.numpy()[np.repeat(near, np.diff(part.indptr.numpy()))]]] = True
        level[read & (level > hop)] = hop
    return [level[part.ids.numpy()] for part in parts]


def _worthwhile(parts: Sequence[Part], levels: Sequence[Array], hops: Hops) -> Hops:
    """As placement/holding/live.py has it: layers that would leave out next to nothing leave out nothing."""
    total = sum(int(part.indptr[-1]) for part in parts)

    def arcs(hop: int) -> int:
        pairs = zip(parts, levels, strict=True)
        return sum(int(np.diff(part.indptr.numpy())[level <= hop].sum()) for part, level in pairs)

    return tuple(hop if hop is not None and arcs(hop) <= WORTH * total else None for hop in hops)


def _fewer(part: Part, level: Array, hops: Hops) -> dict[int, tuple[LayerCounts, Array]]:
    order = np.argsort(level, kind="stable")
    targets = [len(level) if hop is None else int((level <= hop).sum()) for hop in hops]
    return {
        layer: _layer(part, rows, read, order)
        for layer, (read, rows) in enumerate(pairwise([len(level), *targets]))
        if hops[layer] is not None
    }


def _layer(part: Part, targets: int, sources: int, order: Array | None = None) -> tuple[LayerCounts, Array]:
    """Of the first rows in an order; and how many halo rows of each peer they read. What is sent is not known here."""
    computed = np.ones(len(part.ids), bool)
    if order is not None:
        computed[order[targets:]] = False
    columns = part.indices.numpy()[np.repeat(computed, np.diff(part.indptr.numpy()))]
    outer = columns[columns >= len(part.ids)] - len(part.ids)
    seen = np.zeros(len(part.halo_ids), bool)
    seen[outer] = True
    owner = np.repeat(np.arange(part.parts), part.recv_counts)
    read = np.bincount(owner[seen], minlength=part.parts)
    counts = LayerCounts(
        targets=targets,
        sources=sources,
        inner=len(columns) - len(outer),
        outer=len(outer),
        sent=part.send_counts,
        read=tuple(map(int, read)),
    )
    return counts, read


def _with_sent(fewer: Sequence[dict[int, tuple[LayerCounts, Array]]], rank: int) -> dict[int, LayerCounts]:
    """A rank's layers, each sending what the peers read."""
    found = {}
    for layer, (counts, _) in fewer[rank].items():
        sent = tuple(int(peer[layer][1][rank]) for peer in fewer)
        found[layer] = LayerCounts(
            targets=counts.targets, sources=counts.sources, inner=counts.inner, outer=counts.outer, sent=sent,
            read=counts.read,
        )  # fmt: skip
    return found
