"""The node types and relations of a typed graph, as facts about its union.

The union numbers all nodes, type after type. Its features have the columns of all types, one type after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

from fullgraph.values import Range, Value

Count = Annotated[int, Range(0, 2**62)]
NODE_TYPE, EDGE_TYPE = "node_type", "edge_type"  # the union's arrays of nodes and edges: numbers of types and relations


@dataclass(frozen=True, slots=True)
class TypeFact(Value):
    """A node type: its name, its nodes, and the columns of its features (0: none; rows are learned)."""

    name: str
    nodes: Count
    features: Count


@dataclass(frozen=True, slots=True)
class RelationFact(Value):
    """A relation and its number of edges."""

    source: str
    name: str
    target: str
    edges: Count
    weighted: bool = False
    features: Count = 0  # columns of its edges' features


@dataclass(frozen=True, slots=True)
class TypeShare(Value):
    """The share of each part in one node type: owned nodes, and halo rows.

    A node is one halo row of a part that reads it, however many relations read it.
    """

    name: str
    nodes: tuple[Count, ...]  # owned, by part
    halo: tuple[Count, ...]  # by part
    node_imbalance: float  # max / mean over parts


@dataclass(frozen=True, slots=True)
class GraphTypes(Value):
    """Node types and relations, in the order of their numbers; none for a homogeneous graph. target: has the labels."""

    nodes: tuple[TypeFact, ...] = ()
    relations: tuple[RelationFact, ...] = ()
    target: str = ""

    def __bool__(self) -> bool:
        return bool(self.nodes)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each type's ids begin; the last entry is the number of nodes."""
        return tuple(accumulate((kind.nodes for kind in self.nodes), initial=0))

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Node types and relations, as in PyG's `HeteroData.metadata()`."""
        return [kind.name for kind in self.nodes], [(rel.source, rel.name, rel.target) for rel in self.relations]

    def columns(self) -> Iterator[tuple[TypeFact, slice]]:
        """Yield each type with its columns of the features."""
        ends = accumulate((kind.features for kind in self.nodes), initial=0)
        yield from ((kind, slice(*bounds)) for kind, bounds in zip(self.nodes, pairwise(ends), strict=True))

    @property
    def target_ids(self) -> slice:
        """The ids that may have labels: the target type's, or all ids of a homogeneous graph."""
        names = [kind.name for kind in self.nodes]
        if self.target not in names:
            return slice(0, None)
        return slice(*self.starts[names.index(self.target) :][:2])
