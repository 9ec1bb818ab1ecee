"""A view of a mixture from counts alone, for a dry run: structures that have sizes and no numbers.

Rows are in even shares, as this placement cuts them, and arcs are spread evenly over blocks.
"""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from fullgraph.ops import Adjacency
from fullgraph.ops.parallel import even_cuts
from fullgraph.placement.counts import META, Counts, Kind, LayerCounts, aggregated, ids, pattern
from fullgraph.placement.known import Known
from fullgraph.placement.mixture.grid import Grid
from fullgraph.placement.mixture.live import LayerTiles
from fullgraph.placement.mixture.rows import BlockRows
from fullgraph.placement.mixture.view import MixtureView
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.transport import Transport

if TYPE_CHECKING:
    from fullgraph.placement.mixture.placement import Mixture


def view_of_counts(
    placement: "Mixture", counts: Counts, transport: Transport, aggregation: str, *, dense: bool
) -> MixtureView:
    rank, size, nodes = transport.rank, transport.size, counts.graph.nodes
    updaters = [r for r in range(size) if not placement.roles or placement.roles[r] != "sparse"]
    shares = dict(zip(updaters, _even(nodes, len(updaters)), strict=True))
    by_rank = [_even(shares.get(r, 0), placement.blocks) for r in range(size)]
    rows, own = BlockRows(rank, tuple(zip(*by_rank, strict=True))), shares.get(rank, 0)
    none = (0,) * size
    part = LayerCounts(targets=own, sources=own, inner=0, outer=0, sent=none, read=none)
    graph = RankGraph.of_counts(counts, part, placement.dtype, dense=dense)
    x, attends, kind = graph.rows.x, aggregation == "attention", Kind.of(counts, aggregation, placement.dtype)
    sparse = isinstance(x, Adjacency)
    known = placement.rules.known_ahead(sparse=sparse, attends=attends, halo_is_less=lambda: False)
    view = MixtureView(
        graph=graph,
        transport=transport,
        num_nodes=nodes,
        counts={"train": counts.train, "val": 0, "test": 0},
        known=Known(x, aggregated(x, counts.arcs * own // max(1, nodes))) if known else None,
        whole=LayerTiles(rows, rows, _grid(counts, rows.sizes, kind)),
        attends=attends,
        fewer=_fewer(placement, counts, rows, kind),
        aggregators=placement.aggregators(size),
        aggregate_on=META,
    )
    view.splits = {"train": ids(counts.train * own // max(1, nodes)), "val": ids(0), "test": ids(0)}
    return view


def _even(total: int, shares: int) -> list[int]:
    return [high - low for low, high in pairwise(even_cuts(total, shares))]


def _fewer(placement: "Mixture", counts: Counts, rows: BlockRows, kind: Kind) -> dict[int, LayerTiles]:
    """Layers that compute fewer rows, as many as the parts that were counted do, in shares as even as the rows'."""
    if placement.blocks > 1 or not placement.hops_trim:
        return {}
    attends = kind.aggregation == "attention"
    found, sources = {}, rows
    for layer in sorted(counts.ranks[0].fewer):
        of_ranks = [rank.fewer[layer] for rank in counts.ranks]
        share = sum(of.targets for of in of_ranks) / max(1, counts.graph.nodes)
        targets = BlockRows(rows.rank, (tuple(int(n * share) for n in rows.table[0]),))
        arcs = sum(of.inner + of.outer for of in of_ranks) + (targets.sizes[0] if kind.loops else 0)
        cell = replace(kind, undirected=False).matrix(targets.sizes[0], 0 if attends else arcs, sources.sizes[0])
        seen = pattern(targets.sizes[0], arcs if attends else 0, sources.sizes[0])
        found[layer] = LayerTiles(sources, targets, Grid({(0, 0): cell}, (seen,)))
        sources = targets
    return found


def _grid(counts: Counts, sizes: tuple[int, ...], kind: Kind) -> Grid:
    nodes, attends = counts.graph.nodes, kind.aggregation == "attention"
    arcs = counts.arcs + (nodes if kind.loops else 0)
    cells, patterns = {}, []
    for b, rows in enumerate(sizes):
        for j, cols in enumerate(sizes):
            share = 0 if attends else arcs * rows * cols // max(1, nodes * nodes)
            cells[b, j] = kind.matrix(rows, share, cols)
        patterns.append(pattern(rows, arcs * rows // max(1, nodes) if attends else 0, nodes))
    return Grid(cells, tuple(patterns))
