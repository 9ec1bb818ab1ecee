"""The node types and relations of a typed graph, as facts about its union.

The union numbers all nodes, type after type. Its features have the columns of all types, one type after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf
from typing import Annotated, Any

import numpy as np

from fullgraph.values import Range, Value

Count = Annotated[int, Range(0, 2**62)]
NODE_TYPE, EDGE_TYPE = "node_type", "edge_type"  # the union's arrays of nodes and edges: numbers of types and relations


@dataclass(frozen=True, slots=True)
class TypeFact(Value):
    """A node type: its name, its nodes, and the columns of its features (0: none; rows are learned).

    length: root mean square of the lengths of its rows of features, as they are stored; 0 before they are.
    """

    name: str
    nodes: Count
    features: Count
    length: Annotated[float, Range(0, inf)] = 0.0


@dataclass(frozen=True, slots=True)
class RelationFact(Value):
    """A relation and its number of edges."""

    source: str
    name: str
    target: str
    edges: Count
    weighted: bool = False
    features: Count = 0  # columns of its edges' features

    def __str__(self) -> str:
        return f"{self.source}__{self.name}__{self.target}"


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
    """Node types and relations, in the order of their numbers; none for a homogeneous graph.

    target: the type with the labels. pairs: the relation, SOURCE__RELATION__TARGET, whose types pairs of nodes join.
    """

    nodes: tuple[TypeFact, ...] = ()
    relations: tuple[RelationFact, ...] = ()
    target: str = ""
    pairs: str = ""

    def __bool__(self) -> bool:
        return bool(self.nodes)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each type's ids begin; the last entry is the number of nodes."""
        return tuple(accumulate((kind.nodes for kind in self.nodes), initial=0))

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Node types and relations, as in PyG's `HeteroData.metadata()`."""
        return [kind.name for kind in self.nodes], [(rel.source, rel.name, rel.target) for rel in self.relations]

    def counted(self, relation: Any) -> "GraphTypes":
        """The same types for other edges; relation: the number of the relation of each."""
        counts = np.bincount(relation, minlength=len(self.relations)).tolist()
        pairs = zip(self.relations, counts, strict=True)
        return replace(self, relations=tuple(replace(own, edges=edges) for own, edges in pairs))

    def columns(self) -> Iterator[tuple[TypeFact, slice]]:
        """Yield each type with its columns of the features."""
        ends = accumulate((kind.features for kind in self.nodes), initial=0)
        yield from ((kind, slice(*bounds)) for kind, bounds in zip(self.nodes, pairwise(ends), strict=True))

    @property
    def target_ids(self) -> slice:
        """The ids that may have labels: the target type's, or all ids of a homogeneous graph."""
        return self._ids_of(self.target)

    @property
    def pair_ids(self) -> tuple[slice, slice]:
        """The ids of possible first and second nodes of a pair."""
        joined = next((relation for relation in self.relations if str(relation) == self.pairs), None)
        first, second = ("", "") if joined is None else (joined.source, joined.target)
        return self._ids_of(first), self._ids_of(second)

    def _ids_of(self, kind: str) -> slice:
        """The ids of a node type; all ids, if there is no such type."""
        names = [fact.name for fact in self.nodes]
        return slice(*self.starts[names.index(kind) :][:2]) if kind in names else slice(0, None)
