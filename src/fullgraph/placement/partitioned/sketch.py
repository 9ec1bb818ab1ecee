"""A partitioned placement without numbers: the same view and channels, over structures that have sizes alone."""

from dataclasses import replace
from typing import TYPE_CHECKING

from fullgraph.exchange import Wires
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.placement.counts import Counts, Kind, LayerCounts, ids, pattern
from fullgraph.placement.holding.adjacency import Matrices, fine
from fullgraph.placement.holding.live import LayerRows
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.shard import Shard, WholeStep
from fullgraph.placement.sketch import aggregated_entries, features, graph_of, known, shard_of, split_counts
from fullgraph.placement.view import Known, KnownHalo
from fullgraph.plan import HaloRoute
from fullgraph.transport import Transport

if TYPE_CHECKING:
    from fullgraph.placement.partitioned.placement import Partitioned


def sketched(placement: "Partitioned", counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
    rank = counts.ranks[transport.rank]
    kind = Kind(
        aggregation=aggregation, weighted=counts.graph.weighted, undirected=counts.undirected,
        dtype=fine(placement.dtype),
    )  # fmt: skip
    of_all = rank.whole.isolated() if placement.isolated else rank.whole
    trims = any(hop is not None for hop in placement.hops)
    fewer = rank.fewer if trims else {}
    if placement.isolated:
        fewer = {layer: rows.isolated() for layer, rows in fewer.items()}
    whole = _layer(of_all, kind)
    x = features(counts, of_all.sources, placement.dtype, dense=placement.rules.dense_input)
    view = PartitionedView(
        graph=graph_of(counts, x, rank.train, halo=of_all.halo, route=whole.route),
        transport=transport,
        num_nodes=counts.graph.nodes,
        counts=split_counts(counts),
        whole=whole,
        attends=aggregation == "attention",
        fewer={layer: _layer(rows, kind) for layer, rows in fewer.items()},
        known=_known(placement, counts, x, of_all, aggregation),
    ).opened(placement.channels, wire, placement.new_clock(), placement.rules)
    return shard_of(counts, view, rank.train, WholeStep(view))


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
    placement: "Partitioned", counts: Counts, x: Features, of_all: LayerCounts, aggregation: str
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
        return KnownHalo(x, features(counts, of_all.halo, placement.dtype, dense=placement.rules.dense_input))
    return known(x, arcs) if kind else None
