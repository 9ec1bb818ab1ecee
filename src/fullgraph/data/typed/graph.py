"""`TypedGraph`: an immutable, validated graph whose nodes have types and whose edges have relations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.cached import cached_property
from fullgraph.data import csr
from fullgraph.data.arrays import Array, FeatureMatrix, as_numpy, frozen, frozen_csr
from fullgraph.data.graph import Graph
from fullgraph.data.names import Names
from fullgraph.data.pairs import KEYS as PAIRS
from fullgraph.data.pairs import Pairs, check_pairs
from fullgraph.data.splits import MASK_KEYS, masks_of
from fullgraph.data.typed.union import union_of
from fullgraph.data.validate import check_edge_features, check_ends, check_features, check_names, check_weight, nodes_of
from fullgraph.errors import InputError, nearest, one_line

Relation = tuple[str, str, str]  # source type, name, target type
NODE_KEYS = ("x", "num_nodes", "names", "y", "class_names", *MASK_KEYS)
EDGE_KEYS = ("edge_index", "edge_weight", "edge_attr")
_NAME = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")


def spelled(relation: Relation) -> str:
    """Return a relation's name in files and messages: SOURCE__RELATION__TARGET."""
    return "__".join(relation)


@dataclass(frozen=True, eq=False)
class NodeType:
    """The nodes of one type. x: floating [N, F], or scipy csr_array [N, F]; None: the type has no features."""

    num_nodes: int
    x: FeatureMatrix | None = None
    names: Names | None = None

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else int(self.x.shape[1])


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one relation: row i lists the sources of the edges into node i of the target type, ascending."""

    indptr: Array  # int64 [N_target + 1]
    indices: Array  # [E]
    edge_weight: Array | None = None  # [E]
    edge_attr: Array | None = None  # [E, K]

    @property
    def num_arcs(self) -> int:
        return int(self.indices.shape[0])

    @property
    def num_features(self) -> int:
        return 0 if self.edge_attr is None else int(self.edge_attr.shape[1])

    @property
    def edge_index(self) -> Array:
        """The edges [2, E] (source, target) in CSR order, as a new array."""
        return np.stack([self.indices, csr.targets(self.indptr, self.indices.dtype)])


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TypedGraph:
    """Nodes by type, edges by relation (source type, name, target type), and labels and masks on one type.

    A homogeneous graph is a typed graph with one type and one relation (`TypedGraph.of`). labels: the target type's
    nodes alone, a graph without edges that holds y, the masks and the classes; None if no type has any. pairs: of one
    relation, for link prediction, numbered inside the two types; None if there are none.
    """

    nodes: Mapping[str, NodeType]
    edges: Mapping[Relation, Edges]
    target: str | None  # the type with labels or masks
    labels: Graph | None = field(repr=False)
    pairs: tuple[Relation, Pairs] | None = field(repr=False)
    name: str
    notes: tuple[str, ...]

    def __init__(self, nodes: Any, edges: Any, *, name: str = "graph", notes: Sequence[str] = ()) -> None:
        """Build a graph from arrays by name, as in `.npz` files.

        nodes: by type, a mapping with x (a matrix; or num_nodes, for a type without features), names, and on one type
        y, the masks (train_mask, ...) and class_names. edges: by relation, a mapping with edge_index [2, E] (source,
        target), edge_weight and edge_attr, or edge_index alone; on one relation pairs, pair_y and the pair masks.
        """
        given = {_name(kind, "node type"): _mapping(kind, value, NODE_KEYS, "x") for kind, value in nodes.items()}
        known = (*EDGE_KEYS, *PAIRS)
        links = {_relation(key): _mapping(key, value, known, "edge_index") for key, value in edges.items()}
        _check_known_ends(links, given)
        kinds = {}
        for kind, arrays in given.items():
            with _at(kind):
                kinds[kind] = _nodes(arrays, kind, links)
        if not sum(kind.num_nodes for kind in kinds.values()):
            raise InputError(f"{name} has no nodes: give a node type its x or num_nodes")
        target, labels = _labels(given, kinds, str(name))
        object.__setattr__(self, "nodes", kinds)
        object.__setattr__(self, "edges", {rel: _edges(rel, arrays, kinds) for rel, arrays in links.items()})
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "pairs", _pairs(links, kinds))
        object.__setattr__(self, "name", str(name))
        object.__setattr__(self, "notes", tuple(notes))

    @classmethod
    def of(cls, graph: Graph) -> TypedGraph:
        """Return a homogeneous graph as a typed one with one type, `node`, and one relation."""
        labels = None
        if not {"y", "train_mask"} <= set(graph.lacks):
            none = np.zeros(graph.num_nodes + 1, dtype=np.int64)
            labels = graph._with(
                indptr=none, indices=graph.indices[:0], edge_weight=None, edge_attr=None, pairs=None, x=_no_x(graph)
            )
        made = cls.__new__(cls)
        values = {
            "nodes": {"node": NodeType(graph.num_nodes, graph.x, graph.names)},
            "edges": {("node", "edge", "node"): Edges(graph.indptr, graph.indices, graph.edge_weight, graph.edge_attr)},
            "target": None if labels is None else "node",
            "labels": labels,
            "pairs": None if graph.pairs is None else (("node", "edge", "node"), graph.pairs),
            "name": graph.name,
            "notes": graph.notes,
        }
        for key, value in values.items():
            object.__setattr__(made, key, value)
        return made

    @classmethod
    def from_pyg(cls, data: Any, name: str = "graph") -> TypedGraph:
        """Build a graph from a torch_geometric `HeteroData`."""
        from fullgraph.data.typed.pyg import typed_from_pyg

        return typed_from_pyg(data, name)

    @classmethod
    def from_tables(cls, nodes: Any, edges: Any, *, name: str = "graph", **columns: Any) -> TypedGraph:
        """Build a graph from tables: one per node type and one per relation (columns: as `Graph.from_tables`)."""
        from fullgraph.data.tables import TableNames
        from fullgraph.data.typed.tables import typed_from_tables
        from fullgraph.values import read_value

        return typed_from_tables(nodes, edges, read_value(TableNames, columns, "TypedGraph.from_tables"), name)

    def to_pyg(self, split: int = 0) -> Any:
        """Return a torch_geometric `HeteroData`: dense x, edge_index in CSR order, the masks of one split."""
        from fullgraph.data.typed.pyg import typed_to_pyg

        return typed_to_pyg(self, split)

    @property
    def num_nodes(self) -> int:
        return sum(kind.num_nodes for kind in self.nodes.values())

    @property
    def num_arcs(self) -> int:
        return sum(edges.num_arcs for edges in self.edges.values())

    @property
    def num_splits(self) -> int:
        return 1 if self.labels is None else self.labels.num_splits

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each type begins when all nodes are numbered, type after type; the last entry is their number."""
        return tuple(accumulate((kind.num_nodes for kind in self.nodes.values()), initial=0))

    def ranges(self) -> Iterator[tuple[str, int, int]]:
        """Yield (type, first, last + 1) in that numbering."""
        yield from ((kind, *bounds) for kind, bounds in zip(self.nodes, pairwise(self.starts), strict=True))

    @cached_property
    def union(self) -> Graph:
        """All nodes in one numbering, and the edges of all relations: the graph to partition and train on."""
        return union_of(self)

    def with_split(self, split: str, seed: int) -> TypedGraph:
        """Return the graph with a random split of the labelled nodes: `random:60/20/20`, drawn by the seed."""
        if self.labels is None:
            raise InputError(f"{self.name} has no labels, and --split {split} draws among labelled nodes: leave it out")
        return self._with(labels=self.labels.with_split(split, seed))

    def with_reverses(self) -> TypedGraph:
        """Return the graph with a relation (target, `rev_NAME`, source) beside each relation, with reversed edges."""
        edges = dict(self.edges)
        for (source, relation, target), own in self.edges.items():
            turned = target, f"rev_{relation}", source
            if turned in edges:
                raise InputError(f"{self.name} already has the relation {spelled(turned)}: it has its reverses")
            edges[turned] = _edges(turned, {**vars(own), "edge_index": own.edge_index[::-1]}, self.nodes)
        return self._with(edges=edges)

    def noted(self, *notes: str) -> TypedGraph:
        """Return the graph with additional remarks, which a command prints."""
        return self._with(notes=(*self.notes, *notes))

    def _with(self, **changes: Any) -> TypedGraph:
        made = TypedGraph.__new__(TypedGraph)
        for key in ("nodes", "edges", "target", "labels", "pairs", "name", "notes"):
            object.__setattr__(made, key, changes.get(key, getattr(self, key)))
        return made

    def __repr__(self) -> str:
        kinds = ", ".join(
            f"{kind} {own.num_nodes:,} ({f'{own.num_features:,} features' if own.x is not None else 'no features'})"
            for kind, own in self.nodes.items()
        )
        edges = ", ".join(f"{spelled(rel)} {own.num_arcs:,}" for rel, own in self.edges.items())
        labels = "no labels" if self.labels is None else f"{self.labels.num_classes} classes on {self.target}"
        if self.labels is not None and self.labels.real:
            labels = f"{self.labels.num_classes} real numbers on {self.target}"
        if self.labels is not None and self.labels.multilabel:
            labels = f"{self.labels.num_classes} multi-label classes on {self.target}"
        return f"TypedGraph({self.name!r}, nodes: {kinds}; edges: {edges or 'none'}; {labels})"


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Begin an error's line with the type or relation that it is about."""
    try:
        yield
    except InputError as bad:
        raise InputError(f"{where}: {bad}") from None


def _name(text: Any, what: str) -> str:
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise InputError(f"{what} {one_line(repr(text), 60)}: give a name of letters, digits and single underscores")
    return text


def _relation(key: Any) -> Relation:
    """Return a relation from a tuple of three names, or from SOURCE__RELATION__TARGET."""
    parts = key.split("__") if isinstance(key, str) else key
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        raise InputError(f"relation {one_line(repr(key), 80)}: give (source type, name, target type), in a file "
                         "SOURCE__RELATION__TARGET")  # fmt: skip
    source, name, target = (_name(part, f"relation {one_line(repr(key), 80)}:") for part in parts)
    return source, name, target


def _mapping(key: Any, value: Any, known: Sequence[str], alone: str) -> dict[str, Any]:
    """Return the arrays of a type or relation; a single array stands for `alone`."""
    arrays = dict(value) if isinstance(value, Mapping) else {alone: value}
    unknown = [name for name in arrays if name not in known]
    if unknown:
        where = key if isinstance(key, str) else spelled(key)
        hint = nearest(unknown[0], known)
        raise InputError(f"{where} has unknown arrays {one_line(', '.join(map(str, unknown)), 80)}{hint}; known: "
                         f"{', '.join(known)}")  # fmt: skip
    return {name: array for name, array in arrays.items() if array is not None}


def _check_known_ends(links: Mapping[Relation, Any], kinds: Mapping[str, Any]) -> None:
    for rel in links:
        missing = [kind for kind in (rel[0], rel[2]) if kind not in kinds]
        if missing:
            raise InputError(
                f"{spelled(rel)} ends at '{missing[0]}', which is not a node type{nearest(missing[0], kinds)} (types: "
                f"{one_line(', '.join(kinds), 120)}): add its x or num_nodes, or remove the relation"
            )


def _nodes(arrays: Mapping[str, Any], kind: str, links: Mapping[Relation, Mapping[str, Any]]) -> NodeType:
    """Return a node type; without x and num_nodes, its size is that of its labels or names, or the largest id + 1."""
    x, size, names = (arrays.get(key) for key in ("x", "num_nodes", "names"))
    if x is not None:
        shape = x.shape if sp.issparse(x) or hasattr(x, "shape") else as_numpy(x).shape
        empty = len(shape) == 2 and shape[0] == 0
        x = None if empty and shape[1] == 0 else x if empty else check_features(x)
    said = _says(size)
    if x is None:
        count = 0 if said == 0 else nodes_of(size, arrays.get("y"), names, _ids_of(kind, links))
    else:
        count = int(x.shape[0])
        if said not in (None, count):
            raise InputError(f"num_nodes is {said} for {count} rows of x: leave num_nodes out, or correct it")
        x = frozen_csr(x) if sp.issparse(x) else frozen(as_numpy(x))
    return NodeType(count, x, check_names(names, count))


def _says(size: Any) -> int | None:
    """Return num_nodes as a number; None if there is none."""
    count = None if size is None else as_numpy(size)
    if count is not None and (count.size != 1 or count.dtype.kind not in "iu"):
        raise InputError(f"num_nodes is {count.dtype} {count.shape}: give one whole number")
    return None if count is None else int(count.reshape(()))


def _ids_of(kind: str, links: Mapping[Relation, Mapping[str, Any]]) -> Array:
    """Return the ids of a type's nodes that edges name."""
    ids = [np.empty(0, dtype=np.int64)]
    for (source, _, target), arrays in links.items():
        edges = as_numpy(arrays.get("edge_index", ()))
        if edges.ndim == 2 and edges.shape[0] == 2 and edges.dtype.kind in "iu":
            ids += [edges[row, :] for row, end in enumerate((source, target)) if end == kind]
    return np.concatenate(ids)


def _edges(rel: Relation, arrays: Mapping[str, Any], kinds: Mapping[str, NodeType]) -> Edges:
    with _at(spelled(rel)):
        if "edge_index" not in arrays:
            raise InputError("lacks edge_index: give [2, edges], row 0 the sources, row 1 the targets")
        sources, targets = ((end, kinds[end].num_nodes) for end in (rel[0], rel[2]))
        edges = check_ends(arrays["edge_index"], sources, targets)
        given = {key: arrays.get(key) for key in ("edge_weight", "edge_attr")}
        weight = None if given["edge_weight"] is None else check_weight(given["edge_weight"], edges.shape[1])
        attr = None if given["edge_attr"] is None else check_edge_features(given["edge_attr"], edges.shape[1])
        # The edges' numbers are sorted, and then they sort all arrays of edges.
        numbers = np.arange(edges.shape[1]) if attr is not None else weight
        indptr, indices, order = csr.csr_by_target(edges[0], edges[1], targets[1], numbers, num_sources=sources[1])
        if attr is not None:
            weight, attr = None if weight is None else weight[order], attr[order]
        else:
            weight = order
        parts = (indptr, indices, weight, attr)
        return Edges(*(None if part is None else frozen(part) for part in parts))  # type: ignore[arg-type]


def _pairs(links: Mapping[Relation, Mapping[str, Any]], kinds: Mapping[str, NodeType]) -> Any:
    """Return the relation that has pairs, and its pairs; None if none has."""
    paired = [rel for rel, arrays in links.items() if any(key in arrays for key in PAIRS)]
    if not paired:
        return None
    if len(paired) > 1:
        held = one_line(" and ".join(map(spelled, paired)), 160)
        raise InputError(f"pairs are on {len(paired)} relations, {held}: keep those of one relation")
    rel = paired[0]
    with _at(spelled(rel)):
        given = {key: links[rel][key] for key in PAIRS if key in links[rel]}
        return rel, check_pairs(given, kinds[rel[0]].num_nodes, kinds[rel[2]].num_nodes)


def _labels(given: Mapping[str, Mapping[str, Any]], kinds: Mapping[str, NodeType], name: str) -> Any:
    """Return the type that has labels or masks, and its nodes as a graph without edges; (None, None) if none has."""
    labelled = [kind for kind, arrays in given.items() if any(key in arrays for key in ("y", *MASK_KEYS))]
    if not labelled:
        return None, None
    if len(labelled) > 1:
        held = " and ".join(
            f"{kind} ({', '.join(key for key in ('y', *MASK_KEYS) if key in given[kind])})" for kind in labelled
        )
        raise InputError(f"labels or masks are on {len(labelled)} types, {one_line(held, 160)}: keep those of one type")
    kind, arrays, no_edges = labelled[0], given[labelled[0]], np.empty((2, 0), dtype=np.int64)
    if not kinds[kind].num_nodes:
        raise InputError(f"{kind} has labels or masks and no nodes: remove them, or add nodes")
    with _at(kind):
        masks = masks_of(arrays.get)
        columns, classes = _no_x(kinds[kind]), arrays.get("class_names")
        return kind, Graph(no_edges, columns, arrays.get("y"), masks, class_names=classes, name=name)


def _no_x(nodes: NodeType | Graph) -> Any:
    """Return features without an entry, for a graph that stands for labels alone."""
    return sp.csr_array((nodes.num_nodes, 1), dtype=np.float32)


__all__ = ["EDGE_KEYS", "NODE_KEYS", "Edges", "NodeType", "Relation", "TypedGraph", "spelled"]
