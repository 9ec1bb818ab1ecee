"""A partitioned view from counts alone, for a dry run: structures that have sizes and no numbers."""

from dataclasses import replace
from typing import TYPE_CHECKING

from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.placement.counts import Counts, Kind, LayerCounts, aggregated, aggregated_entries, features, ids, pattern
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.placement.holding.live import LayerRows
from fullgraph.placement.known import Known, KnownHalo
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.plan import HaloRoute
from fullgraph.transport import Transport

if TYPE_CHECKING:
    from fullgraph.placement.partitioned.placement import Partitioned


def view_of_counts(
    placement: "Partitioned", counts: Counts, transport: Transport, aggregation: str, *, dense: bool
) -> PartitionedView:
    rank, kind = counts.ranks[transport.rank], Kind.of(counts, aggregation, placement.dtype)
    rank = rank.isolated() if placement.isolated else rank
    graph = RankGraph.of_counts(counts, rank.whole, placement.dtype, dense=dense)
    view = PartitionedView(
        graph=graph,
        transport=transport,
        num_nodes=counts.graph.nodes,
        counts={"train": counts.train, "val": 0, "test": 0},
        whole=replace(_layer(rank.whole, kind), halo_ids=graph.rows.halo_ids, route=graph.rows.route),
        attends=aggregation == "attention",
        fewer={layer: _layer(rows, kind) for layer, rows in rank.fewer.items()} if placement.hops_trim else {},
        known=_known(placement, counts, graph.rows.x, rank.whole, aggregation, dense),
    )
    view.splits = {"train": ids(rank.train), "val": ids(0), "test": ids(0)}
    return view


def _layer(counts: LayerCounts, kind: Kind) -> LayerRows:
    targets, sources, halo = counts.targets, counts.sources, counts.halo
    loops = targets if kind.loops else 0
    attends = kind.aggregation == "attention"
    inner, outer = (0, 0) if attends else (counts.inner + loops, counts.outer)
    return LayerRows(
        targets=targets,
        sources=sources,
        halo_ids=ids(halo),
        route=HaloRoute(ids(sum(counts.sent)), counts.sent, counts.read, sources),
        matrices=Matrices(
            kind.matrix(targets, inner, sources),
            replace(kind, undirected=False).matrix(targets, outer, halo),
            pattern(targets, counts.inner + counts.outer + loops if attends else 0, sources + halo),
        ),
    )


def _known(
    placement: "Partitioned",
    counts: Counts,
    x: Features,
    of_all: LayerCounts,
    aggregation: str,
    dense: bool,
) -> Known | KnownHalo | None:
    """What is known of the input, as the placement itself would choose."""
    arcs = of_all.inner + of_all.outer

    def halo_is_less() -> bool:
        assert isinstance(x, Adjacency)
        return aggregated_entries(x, arcs) > x.structure.num_arcs + arcs

    kind = placement.rules.known_ahead(
        sparse=isinstance(x, Adjacency), attends=aggregation == "attention", halo_is_less=halo_is_less
    )
    if kind == "halo":
        return KnownHalo(x, features(counts, of_all.halo, placement.dtype, dense=dense))
    return Known(x, aggregated(x, arcs)) if kind else None
