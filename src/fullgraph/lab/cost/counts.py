"""Counts of a partitioned graph: enough to build a training step on meta tensors."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.partition import GraphFacts
from fullgraph.placement.holding.adjacency import BY_RELATION, dense_is_less, fine
from fullgraph.placement.known import Known, KnownHalo
from fullgraph.placement.layer_plans import Rules

META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """Counts of the rows that a layer computes and reads on one rank."""

    targets: int  # rows that it computes
    sources: int  # owned rows that it reads
    inner: int  # arcs between those
    outer: int  # arcs from halo rows
    sent: tuple[int, ...]  # rows, by peer
    read: tuple[int, ...]  # halo rows, by peer
    asks: tuple[int, ...] = ()  # edges of the rows and sums that it reads, by peer; (): it reads rows only
    asked: int = 0  # edges of the rows and sums that it sends
    covered: "LayerCounts | None" = None  # the same layer, if it sends the fewest rows and sums; None: unknown

    @property
    def halo(self) -> int:
        return sum(self.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounts:
    """The counts of one rank's part."""

    whole: LayerCounts
    train: int  # training nodes
    fewer: dict[int, LayerCounts] = field(default_factory=dict)  # layers that do not compute all rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of all parts of a graph."""

    graph: GraphFacts
    ranks: tuple[RankCounts, ...]
    entries: int = 0  # entries of sparse features
    undirected: bool = True
    even: bool = False  # all parts are equal

    @property
    def train(self) -> int:
        return sum(rank.train for rank in self.ranks)

    @property
    def of_splits(self) -> dict[str, int]:
        """Nodes of each split; a dry run evaluates none."""
        return {"train": self.train, "val": 0, "test": 0}

    @property
    def arcs(self) -> int:
        return sum(rank.whole.inner + rank.whole.outer for rank in self.ranks)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A meta tensor of this shape."""
    return torch.empty(shape, dtype=dtype, device=META)


def ids(count: int) -> Tensor:
    """A meta tensor of `count` ids."""
    return numbers(count, dtype=torch.int64)


def pattern(rows: int, arcs: int, cols: int) -> Structure:
    """A structure of these sizes on meta tensors."""
    return Structure(ids(rows + 1), numbers(arcs, dtype=torch.int32), cols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The properties of an aggregation's matrices."""

    aggregation: str
    weighted: bool
    undirected: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, counts: Counts, aggregation: str, dtype: torch.dtype) -> "Kind":
        if aggregation in BY_RELATION:
            raise InputError("the cost of a model for typed graphs cannot be predicted; measure it")
        return cls(
            aggregation=aggregation, weighted=counts.graph.weighted, undirected=counts.undirected, dtype=fine(dtype)
        )

    @property
    def attends(self) -> bool:
        return self.aggregation == "attention"

    @property
    def loops(self) -> bool:
        """Whether every row has a self loop."""
        return self.aggregation in ("gcn", "attention")

    def matrix(self, rows: int, arcs: int, cols: int) -> Adjacency:
        """A matrix of these sizes; it is its own transpose if the graph allows it."""
        structure = pattern(rows, arcs, cols)
        if self.undirected and rows == cols:
            structure.paired(structure, None)
        row = numbers(rows, dtype=self.dtype) if self.aggregation in ("gcn", "mean") else None
        col = numbers(cols, dtype=self.dtype) if self.aggregation == "gcn" else None
        return Adjacency(structure, numbers(arcs, dtype=self.dtype) if self.weighted else None, row, col)


def features(counts: Counts, rows: int, dtype: torch.dtype, *, dense: bool) -> Features:
    """Input rows on meta tensors; sparse ones have their share of the graph's entries."""
    graph = counts.graph
    if dense or not graph.sparse:
        return numbers(rows, graph.features, dtype=dtype)
    return sparse(rows, counts.entries * rows // max(1, graph.nodes), graph.features)


def sparse(rows: int, entries: int, columns: int) -> Adjacency:
    return Adjacency(pattern(rows, entries, columns), numbers(entries), None, None)


def aggregated(x: Features, arcs: int) -> Features:
    """The aggregation of x over `arcs` arcs; dense if most entries are not zero."""
    if isinstance(x, Tensor):
        return torch.empty_like(x)
    entries = aggregated_entries(x, arcs)
    return numbers(*x.shape) if dense_is_less(entries, prod(x.shape)) else sparse(x.shape[0], entries, x.shape[1])


def aggregated_entries(x: Adjacency, arcs: int) -> int:
    """Entries of the aggregation of sparse rows, assuming that their columns are random."""
    rows, columns = x.shape
    share = min(1.0, x.structure.num_arcs / max(1, rows * columns))
    return int(rows * columns * (1 - (1 - share) ** (arcs / max(1, rows))))


def known_input(
    rules: Rules, counts: Counts, x: Features, *, attends: bool, arcs: int, halo: int
) -> Known | KnownHalo | None:
    """The part of input rows x that the rules let a run precompute, from the numbers of arcs and halo rows."""

    def halo_is_less() -> bool:
        assert isinstance(x, Adjacency)
        return aggregated_entries(x, arcs) > x.structure.num_arcs + arcs

    known = rules.known_ahead(sparse=isinstance(x, Adjacency), attends=attends, halo_is_less=halo_is_less)
    if known == "halo":
        if isinstance(x, Tensor):
            return KnownHalo(x, x.new_empty(halo, x.shape[1]))
        return KnownHalo(x, sparse(halo, counts.entries * halo // max(1, counts.graph.nodes), x.shape[1]))
    return Known(x, aggregated(x, arcs)) if known else None


def labels(counts: Counts, rows: int) -> Tensor:
    graph = counts.graph
    return numbers(rows, graph.classes) if graph.multilabel or graph.real else ids(rows)
