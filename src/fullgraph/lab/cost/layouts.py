"""The placements from counts, on meta tensors: a dry run records what a step of such a shard would do."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import torch

from fullgraph.errors import InputError
from fullgraph.exchange import Builder, Wire, Wires
from fullgraph.lab.cost.chunks import SetupOfCounts
from fullgraph.lab.cost.counts import (
    META,
    Counts,
    Kind,
    LayerCounts,
    RankCounts,
    features,
    ids,
    known_input,
    labels,
    numbers,
    pattern,
)
from fullgraph.ops import Adjacency
from fullgraph.ops.parallel import even_cuts
from fullgraph.placement import AllLayers, Mixture, Partitioned, Pipeline, Placement, RankGraph, Shard, WholeStep
from fullgraph.placement.holding.adjacency import Arcs, Matrices
from fullgraph.placement.holding.live import LayerRows
from fullgraph.placement.mixture.tiles import BlockRows, Grid, LayerTiles
from fullgraph.placement.mixture.view import MixtureView
from fullgraph.placement.partitioned.view import PartitionedView
from fullgraph.placement.rank_graph import NodeRows
from fullgraph.placement.view import ChannelView
from fullgraph.plan import CoverRoute, HaloRoute
from fullgraph.transport import Transport

V = TypeVar("V", bound=ChannelView)


def place(placement: Placement, counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
    """A rank's share of the work, as `placement.place` returns it for real rows."""
    if isinstance(placement, Pipeline):
        by_parts = replace(placement.by_parts, isolated=False)
        view = _partitioned(by_parts, counts, transport, aggregation, dense=placement.rules.dense_input)
        parts = _shard(by_parts, view, counts, Wire())
        setup = SetupOfCounts(placement, parts.train, counts, wire, aggregation)
        return replace(parts, executor=placement.ending(setup.step(), parts.executor))
    dense = placement.rules.dense_input
    if isinstance(placement, Partitioned):
        return _shard(placement, _partitioned(placement, counts, transport, aggregation, dense=dense), counts, wire)
    if isinstance(placement, Mixture):
        return _shard(placement, _mixture(placement, counts, transport, aggregation, dense=dense), counts, wire)
    raise InputError(
        f"{type(placement).__name__} cannot be placed from counts, so that its cost cannot be predicted; measure it"
    )


def phases(placement: Placement) -> Sequence[tuple[Placement, int]]:
    """The placements that the run uses one after the other, each with its number of epochs."""
    if not isinstance(placement, Pipeline):
        return [(placement, placement.epochs)]
    chunked = placement.epochs if placement.first_exact is None else placement.first_exact
    exact = placement.epochs - chunked
    found = [(replace(placement, exact_from=1.0), chunked), (replace(placement, exact_from=0.0), exact)]
    return [phase for phase in found if phase[1] > 0] or found[:1]


def alike(placement: Placement) -> bool:
    """Whether ranks with equal parts do equal work, and send equal messages at the same time."""
    if isinstance(placement, Pipeline):
        return False  # stages differ
    return not (isinstance(placement, Mixture) and placement.roles)


def stale_steps(placement: Placement) -> int:
    """The age in steps of the oldest rows that the placement itself reads, in addition to the lag of its wires."""
    if not isinstance(placement, Pipeline) or placement.chunks == 1 or placement.exact_from == 0:
        return 0
    return placement.history.freeze


def hops_between(placement: Placement) -> tuple[Builder, ...]:
    """The placement's own wires, in addition to the strategy's."""
    return (placement.hop.at(0),) if isinstance(placement, Pipeline) else ()


def _shard(placement: AllLayers, view: ChannelView, counts: Counts, wire: Wires) -> Shard:
    """A shard for training only."""
    train = view.opened(placement.channels, wire, placement.new_clock(), placement.rules)
    train.splits = view.splits
    return Shard(train, train, WholeStep(train), view.transport, counts.graph)


def _graph(counts: Counts, part: LayerCounts, dtype: torch.dtype, *, dense: bool) -> RankGraph:
    """A part's graph. Only matrices have its edges."""
    rows = NodeRows(
        ids=ids(part.sources),
        halo_ids=ids(part.halo),
        route=HaloRoute(ids(sum(part.sent)), part.sent, part.read, part.sources),
        x=features(counts, part.sources, dtype, dense=dense),
        y=labels(counts, part.sources),
    )
    return RankGraph.of(rows, Arcs(ids(part.sources + 1), ids(0), None, 0))


def _with_train(view: V, train: int) -> V:
    """The view with `train` training nodes on this rank; a dry run evaluates no nodes."""
    view.splits = {"train": ids(train), "val": ids(0), "test": ids(0)}
    return view


def _partitioned(
    placement: Partitioned, counts: Counts, transport: Transport, aggregation: str, *, dense: bool
) -> PartitionedView:
    rank, kind = counts.ranks[transport.rank], Kind.of(counts, aggregation, placement.dtype)
    rank = _isolated(rank) if placement.isolated else rank
    graph, whole = _graph(counts, rank.whole, placement.dtype, dense=dense), rank.whole
    arcs, x = whole.inner + whole.outer, graph.rows.x
    trimmed = rank.fewer if placement.hops_trim else {}
    fewer = {layer: _layer(rows, kind) for layer, rows in trimmed.items()}
    layers: list[tuple[int | None, LayerCounts]] = [(None, whole), *trimmed.items()]
    view = PartitionedView(
        graph=graph,
        transport=transport,
        num_nodes=counts.graph.nodes,
        counts=counts.of_splits,
        whole=replace(_layer(whole, kind), halo_ids=graph.rows.halo_ids, route=graph.rows.route),
        attends=kind.attends,
        fewer=fewer,
        crossed={(layer, True): _covered(rows, kind) for layer, rows in layers if placement.cover},
        known=known_input(placement.rules, counts, x, attends=kind.attends, arcs=arcs, halo=whole.halo),
    )
    return _with_train(view, rank.train)


def _isolated(rank: RankCounts) -> RankCounts:
    """The same counts without arcs from other ranks."""
    none = (0,) * len(rank.whole.sent)
    fewer = {layer: replace(rows, outer=0, sent=none, read=none) for layer, rows in rank.fewer.items()}
    return replace(rank, whole=replace(rank.whole, outer=0, sent=none, read=none), fewer=fewer)


def _layer(counts: LayerCounts, kind: Kind) -> LayerRows:
    """The rows that a layer computes and reads."""
    targets, sources, halo = counts.targets, counts.sources, counts.halo
    loops = targets if kind.loops else 0
    inner, outer = (0, 0) if kind.attends else (counts.inner + loops, counts.outer)
    return LayerRows(
        targets=targets,
        sources=sources,
        halo_ids=ids(halo),
        route=HaloRoute(ids(sum(counts.sent)), counts.sent, counts.read, sources),
        matrices=Matrices(
            kind.matrix(targets, inner, sources),
            replace(kind, undirected=False).matrix(targets, outer, halo),
            pattern(targets, counts.inner + counts.outer + loops if kind.attends else 0, sources + halo),
        ),
    )


def _covered(counts: LayerCounts, kind: Kind) -> LayerRows:
    """The rows of a layer that sends the fewest rows and sums, if they are counted."""
    rows, cover = _layer(counts, kind), counts.covered
    if cover is None or kind.attends:
        return rows
    fewer = _layer(cover, replace(kind, undirected=False))
    sent = sum(cover.sent)
    route = replace(fewer.route, num_owned=sent)
    weight = numbers(cover.asked, dtype=kind.dtype) if kind.weighted or kind.aggregation == "gcn" else None
    matrix = Adjacency(pattern(sent, cover.asked, counts.sources), weight, numbers(sent, dtype=kind.dtype))
    outer = fewer.matrices.outer
    outer = Adjacency(outer.structure, outer.weight, outer.row_scale, numbers(cover.halo, dtype=kind.dtype))
    matrices = replace(rows.matrices, outer=outer)
    return replace(rows, halo_ids=fewer.halo_ids, route=route, matrices=matrices, cover=CoverRoute(route, matrix))


def _mixture(placement: Mixture, counts: Counts, transport: Transport, aggregation: str, *, dense: bool) -> MixtureView:
    """Equal shares of rows, as this placement divides them, with arcs spread evenly over blocks."""
    rank, size, nodes = transport.rank, transport.size, counts.graph.nodes
    updaters = [r for r in range(size) if not placement.roles or placement.roles[r] != "sparse"]
    shares = dict(zip(updaters, _even(nodes, len(updaters)), strict=True))
    by_rank = [_even(shares.get(r, 0), placement.blocks) for r in range(size)]
    rows, own = BlockRows(rank, tuple(zip(*by_rank, strict=True))), shares.get(rank, 0)
    none = (0,) * size
    part = LayerCounts(targets=own, sources=own, inner=0, outer=0, sent=none, read=none)
    graph = _graph(counts, part, placement.dtype, dense=dense)
    kind = Kind.of(counts, aggregation, placement.dtype)
    arcs = counts.arcs * own // max(1, nodes)
    view = MixtureView(
        graph=graph,
        transport=transport,
        num_nodes=nodes,
        counts=counts.of_splits,
        known=known_input(placement.rules, counts, graph.rows.x, attends=kind.attends, arcs=arcs, halo=0),
        whole=LayerTiles(rows, rows, _grid(counts, rows.sizes, kind)),
        attends=kind.attends,
        fewer=_fewer(counts, rows, kind) if placement.blocks == 1 and placement.hops_trim else {},
        aggregators=placement.aggregators(size),
        aggregate_on=META,
    )
    return _with_train(view, counts.train * own // max(1, nodes))


def _even(total: int, shares: int) -> list[int]:
    return [high - low for low, high in pairwise(even_cuts(total, shares))]


def _fewer(counts: Counts, rows: BlockRows, kind: Kind) -> dict[int, LayerTiles]:
    """Layers that do not compute all rows: ranks have equal shares of the counted parts' rows."""
    found, sources = {}, rows
    for layer in sorted(counts.ranks[0].fewer):
        of_ranks = [rank.fewer[layer] for rank in counts.ranks]
        share = sum(of.targets for of in of_ranks) / max(1, counts.graph.nodes)
        targets = BlockRows(rows.rank, (tuple(int(n * share) for n in rows.table[0]),))
        arcs = sum(of.inner + of.outer for of in of_ranks) + (targets.sizes[0] if kind.loops else 0)
        cell = replace(kind, undirected=False).matrix(targets.sizes[0], 0 if kind.attends else arcs, sources.sizes[0])
        seen = pattern(targets.sizes[0], arcs if kind.attends else 0, sources.sizes[0])
        found[layer] = LayerTiles(sources, targets, Grid({(0, 0): cell}, (seen,)))
        sources = targets
    return found


def _grid(counts: Counts, sizes: tuple[int, ...], kind: Kind) -> Grid:
    nodes, attends = counts.graph.nodes, kind.attends
    arcs = counts.arcs + (nodes if kind.loops else 0)
    cells, patterns = {}, []
    for b, rows in enumerate(sizes):
        for j, cols in enumerate(sizes):
            share = 0 if attends else arcs * rows * cols // max(1, nodes * nodes)
            cells[b, j] = kind.matrix(rows, share, cols)
        patterns.append(pattern(rows, arcs * rows // max(1, nodes) if attends else 0, nodes))
    return Grid(cells, tuple(patterns))
