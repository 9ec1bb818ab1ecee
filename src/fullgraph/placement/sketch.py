"""What the sketches of all placements share: rows, labels and a shard, all without numbers."""

from math import prod

import torch
from torch import Tensor

from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.placement.counts import Counts, ids, numbers, pattern
from fullgraph.placement.holding.adjacency import Arcs
from fullgraph.placement.holding.ahead import DENSE
from fullgraph.placement.rank_graph import NodeRows, RankGraph
from fullgraph.placement.shard import Executor, Shard
from fullgraph.placement.view import Known, RankView
from fullgraph.plan import HaloRoute


def features(counts: Counts, rows: int, dtype: torch.dtype, *, dense: bool) -> Features:
    """Input rows: dense, or sparse with their share of the entries."""
    graph = counts.graph
    if dense or not graph.sparse:
        return numbers(rows, graph.features, dtype=dtype)
    return sparse(rows, counts.entries * rows // max(1, graph.nodes), graph.features)


def sparse(rows: int, entries: int, columns: int) -> Adjacency:
    return Adjacency(pattern(rows, entries, columns), numbers(entries), None, None)


def known(x: Features, arcs: int) -> Known:
    """With the aggregation of x over so many arcs, which is dense where most of it is not zero."""
    if isinstance(x, Tensor):
        return Known(x, torch.empty_like(x))
    entries = aggregated_entries(x, arcs)
    if DENSE * entries > prod(x.shape):
        return Known(x, numbers(*x.shape))
    return Known(x, sparse(x.shape[0], entries, x.shape[1]))


def aggregated_entries(x: Adjacency, arcs: int) -> int:
    """Entries of the aggregation of sparse rows, were their columns drawn by chance."""
    rows, columns = x.shape
    share = min(1.0, x.structure.num_arcs / max(1, rows * columns))
    return int(rows * columns * (1 - (1 - share) ** (arcs / max(1, rows))))


def labels(counts: Counts, rows: int) -> Tensor:
    graph = counts.graph
    return numbers(rows, graph.classes) if graph.multilabel or graph.real else ids(rows)


def graph_of(counts: Counts, x: Features, train: int, *, halo: int, route: HaloRoute) -> RankGraph:
    """Rows of which `train` are trained on, and no edges: what a step reads of those are matrices."""
    rows = x.shape[0]
    nodes = NodeRows(ids=ids(rows), halo_ids=ids(halo), route=route, x=x, y=labels(counts, rows))
    return RankGraph.of(nodes, Arcs(ids(rows + 1), ids(0), None, 0))


def shard_of(counts: Counts, view: RankView, train: int, executor: Executor) -> Shard:
    """A shard that can be trained on, and not evaluated."""
    view.splits = {"train": ids(train), "val": ids(0), "test": ids(0)}
    return Shard(view, view, executor, view.transport, counts.graph)


def split_counts(counts: Counts) -> dict[str, int]:
    return {"train": counts.train, "val": 0, "test": 0}
