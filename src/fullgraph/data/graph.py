"""`Graph`: an immutable, validated graph to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data import csr
from fullgraph.data.arrays import Array, FeatureMatrix, as_numpy, frozen, frozen_csr
from fullgraph.data.fields import Fields, check_fields
from fullgraph.data.labels import as_classes, check_labels, coded, is_real, whole_numbers
from fullgraph.data.names import Names
from fullgraph.data.pairs import Pairs, check_pairs
from fullgraph.data.splits import MASKS, check_masks, draw_masks, missing_of
from fullgraph.data.validate import (
    NOTE,
    check_csr,
    check_edge_features,
    check_edge_index,
    check_features,
    check_names,
    check_weight,
    nodes_of,
    one_hot,
)
from fullgraph.errors import InputError
from fullgraph.graph_types import GraphTypes
from fullgraph.values import read_value


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Graph:
    """A directed graph by target,  A[i, j] = weight of the arc j -> i,  with features, labels and K splits.

    An arc is a directed edge. indptr int64 [N+1] and indices int32 [E] (int64 beyond 2**31-1 nodes): row i lists the
    sources of the arcs into i, ascending; duplicates and self loops stay. x: floating [N, F] (may be memory-mapped) or
    scipy csr_array [N, F]. y: int64 [N], -1 unlabelled; 0/1 float32 [N, C]; or real numbers [N] or [N, C]. Masks: bool
    [N, K]. edge_weight: [E] in CSR order, or None; edge_attr: edge features [E, K] in the same order. names: the user's
    name of each node, or None. pairs: pairs of nodes, edges or not, for link prediction. lacks: missing parts that
    training on nodes needs; such a graph serves link prediction, or prediction by a trained model. class_names: names
    of the classes, if labels were texts. notes: remarks of the reader about omitted or added data, which a run prints.
    types: those of the typed graph whose union this is (typed/union.py); names are then those of its target type only.
    """

    indptr: Array
    indices: Array
    x: FeatureMatrix
    y: Array
    train_mask: Array
    val_mask: Array
    test_mask: Array
    edge_weight: Array | None
    edge_attr: Array | None
    pairs: Pairs | None
    name: str
    num_classes: int  # 0: no labels; for real labels, numbers per node
    real: bool  # True if y is real numbers
    names: Names | None
    fields: Fields  # named arrays of nodes and edges beside x and edge_attr
    lacks: tuple[str, ...]
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    types: GraphTypes

    def __init__(
        self, edge_index: Any, x: Any, y: Any = None, masks: Any = None, *, edge_weight: Any = None,
        edge_attr: Any = None, pairs: Any = None, names: Any = None, name: str = "graph", num_nodes: Any = None,
        class_names: Any = None, fields: Any = None, notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Build a graph from edges [2, E] (source, target), as numpy or torch. `masks` maps train, val, test to bool
        [N] or [N, K], or to lists of node ids.

        x: None gives every node its own column. y: texts become classes. pairs: a `Pairs` value, or a mapping with
        `pairs`, the three pair masks (`pair_train_mask`, ...) and `pair_y`. names: one integer or text per node;
        results carry them. class_names: texts of the classes, if y holds numbers. fields: further arrays by name, with
        a row per node or per edge, which a model of your own may take as arguments.
        """
        if x is None:
            x = one_hot(nodes_of(num_nodes, y, names, edge_index))
            notes = (*notes, NOTE.format(nodes=x.shape[0]))
        features = check_features(x)
        nodes = features.shape[0]
        edges, survey = check_edge_index(edge_index, nodes)
        weight = None if edge_weight is None else check_weight(edge_weight, edges.shape[1])
        attr = None if edge_attr is None else check_edge_features(edge_attr, edges.shape[1])
        named = check_fields(fields, nodes, edges.shape[1])
        if attr is None and not named.edges:
            rows = csr.csr_by_target(edges[0], edges[1], nodes, weight, survey)
        else:  # sort the arcs' numbers, then use them to sort all arrays of arcs
            numbers = np.arange(edges.shape[1])
            indptr, indices, order = csr.csr_by_target(edges[0], edges[1], nodes, numbers, survey)
            rows = (indptr, indices, None if weight is None else weight[order])
            attr, named = None if attr is None else attr[order], named.picked(edges=order)
        self._finish(
            rows, features, y, masks, class_names, edge_attr=attr, pairs=check_pairs(pairs, nodes),
            names=check_names(names, nodes), fields=named, name=str(name), notes=tuple(notes),
        )  # fmt: skip

    @classmethod
    def from_csr(
        cls, indptr: Any, indices: Any, x: Any, y: Any = None, masks: Any = None, *, edge_weight: Any = None,
        name: str = "graph",
    ) -> Graph:  # fmt: skip
        """Build a graph from rows by target: indices[indptr[i]:indptr[i+1]] are the sources of the arcs into i."""
        features = check_features(x)
        num_nodes = features.shape[0]
        indptr, indices = check_csr(indptr, indices, num_nodes)
        weight = None if edge_weight is None else check_weight(edge_weight, indices.shape[0])
        graph = cls.__new__(cls)
        rows = csr.sort_rows(indptr, indices, num_nodes, weight)
        others: dict[str, Any] = {"edge_attr": None, "pairs": None, "names": None, "fields": Fields(), "notes": ()}
        graph._finish(rows, features, y, masks, None, name=str(name), **others)
        return graph

    @classmethod
    def of_rows(
        cls, rows: tuple[Array, Array, Array | None], x: Any, y: Any, masks: Any, *, edge_attr: Any, names: Names,
        class_names: Any, name: str, notes: Sequence[str],
    ) -> Graph:  # fmt: skip
        """Build a graph from sorted rows (indptr, indices, weights) and checked arrays. It does not read the arcs and
        x, which may be larger than the memory."""
        graph = cls.__new__(cls)
        graph._finish(rows, x, y, masks, class_names, edge_attr=edge_attr, pairs=None, names=names, fields=Fields(),
                      name=name, notes=tuple(notes))  # fmt: skip
        return graph

    @classmethod
    def restored(cls, **values: Any) -> Graph:
        """Build a graph from the values of all its fields, which are those of an existing graph: nothing is checked."""
        graph = cls.__new__(cls)
        graph._set(**values)
        return graph

    @classmethod
    def from_pyg(cls, data: Any, name: str = "graph", *, masks: Any = None) -> Graph:
        """Build a graph from a torch_geometric `Data`: edge_index or adj_t, x, y, masks, edge_weight and edge_attr.

        data: also the three results of RandomLinkSplit, whose pairs the graph then has. masks: replace those of
        `data`, in the form of OGB's `get_idx_split()`.
        """
        from fullgraph.data.pyg import graph_from_pyg

        return graph_from_pyg(data, name, masks)

    @classmethod
    def from_tables(cls, nodes: Any, edges: Any, *, name: str = "graph", **columns: Any) -> Graph:
        """Build a graph from two tables with named columns: paths of .parquet or .csv files, or pyarrow tables.

        columns: names that differ from id, label, split, `x_...`, source, target, weight, `e_...`; the keys are id,
        label, split, features, source, target, weight, edge_features. undirected=True adds the reverse of every edge.
        """
        from fullgraph.data.tables import TableNames, graph_from_tables

        return graph_from_tables(nodes, edges, read_value(TableNames, columns, "Graph.from_tables"), name)

    def to_pyg(self, split: int = 0) -> Any:
        """Return a torch_geometric `Data`: dense x, edge_index in CSR order, the masks of one split."""
        from fullgraph.data.pyg import graph_to_pyg

        return graph_to_pyg(self, split)

    def _finish(
        self, rows: tuple[Array, Array, Array | None], x: FeatureMatrix, y: Any, masks: Any, class_names: Any,
        **others: Any,
    ) -> None:  # fmt: skip
        num_nodes = x.shape[0]
        y, texts = coded(y, class_names)
        lacks = missing_of(y, masks, num_nodes)
        none = np.zeros((num_nodes, 1), dtype=bool)
        three = (none, none, none) if lacks else check_masks(masks, num_nodes)
        labels = check_labels(y, three, num_nodes)
        real = is_real(labels)
        columns = 1 if labels.ndim == 1 else int(labels.shape[1])
        num_classes = columns if real or labels.ndim == 2 else len(texts) or int(labels.max()) + 1
        self._set(
            **_rows(rows), **_masks(three), x=x, y=labels, num_classes=num_classes, real=real, lacks=lacks,
            class_names=texts, types=GraphTypes(), **others,
        )  # fmt: skip

    def _set(self, **values: Any) -> None:
        """Set all fields; arrays become read-only views."""
        for field in fields(Graph):
            value = values.pop(field.name)
            if isinstance(value, np.ndarray):
                value = frozen(value)
            object.__setattr__(
                self, field.name, frozen_csr(value) if field.name == "x" and sp.issparse(value) else value
            )
        assert not values, values

    def _with(self, **changes: Any) -> Graph:
        """Return a copy with some fields changed."""
        return Graph.restored(**{field.name: getattr(self, field.name) for field in fields(Graph)} | changes)

    @property
    def num_nodes(self) -> int:
        return int(self.indptr.shape[0]) - 1

    @property
    def num_arcs(self) -> int:
        return int(self.indices.shape[0])

    @property
    def num_features(self) -> int:
        return int(self.x.shape[1])

    @property
    def num_splits(self) -> int:
        return int(self.train_mask.shape[1])

    @property
    def multilabel(self) -> bool:
        return self.y.ndim == 2 and not self.real

    @property
    def labelled(self) -> bool:
        """Whether the graph has everything that training on nodes needs."""
        return not self.lacks

    @property
    def weighted(self) -> bool:
        return self.edge_weight is not None

    @property
    def edge_index(self) -> Array:
        """The arcs [2, E] (source, target) in CSR order, as a new array."""
        return np.stack([self.indices, csr.targets(self.indptr, self.indices.dtype)])

    def subgraph(self, nodes: Any) -> Graph:
        """Return the subgraph of the nodes marked True, in the same order; masks may be empty, classes stay."""
        if self.types:
            raise InputError(f"{self.name} is typed: take the subgraph of each relation before it becomes one graph")
        keep = as_numpy(nodes)
        if keep.dtype != np.bool_ or keep.shape != (self.num_nodes,):
            raise InputError(f"subgraph takes one boolean per node, [{self.num_nodes}]: got {keep.dtype} {keep.shape}")
        if not keep.any():
            raise InputError("subgraph was given no node: mark at least one as True")
        target = csr.targets(self.indptr, self.indices.dtype)
        arcs = keep[target]
        arcs &= keep[self.indices]
        new_id = np.cumsum(keep, dtype=np.int64) - 1
        index = csr.index_dtype(int(keep.sum()))
        in_degree = np.bincount(new_id[target[arcs]], minlength=int(keep.sum()))
        indptr = np.concatenate([[0], np.cumsum(in_degree)]).astype(np.int64)
        weight = None if self.edge_weight is None else self.edge_weight[arcs]
        return self._with(
            **_rows((indptr, new_id[self.indices[arcs]].astype(index), weight)),
            **_masks((self.train_mask[keep], self.val_mask[keep], self.test_mask[keep])),
            x=self.x[keep],
            y=self.y[keep],
            edge_attr=None if self.edge_attr is None else self.edge_attr[arcs],
            names=None if self.names is None else self.names.picked(keep),
            fields=self.fields.picked(keep, arcs),
            pairs=None,
        )

    def with_pairs(self, pairs: Pairs | None, *, held_out: Array | None = None, masks: Any = None) -> Graph:
        """Return the graph with other pairs, without the arcs marked in `held_out`, and with other masks if given."""
        changes: dict[str, Any] = {} if masks is None else {**_masks(masks), "lacks": ()}
        if held_out is not None:
            kept = np.concatenate([[0], np.cumsum(~held_out)])
            weight = None if self.edge_weight is None else self.edge_weight[~held_out]
            changes |= _rows((kept[self.indptr], self.indices[~held_out], weight))
            changes["edge_attr"] = None if self.edge_attr is None else self.edge_attr[~held_out]
            changes["fields"] = self.fields.picked(edges=~held_out)
        return self._with(pairs=pairs, **changes)

    def with_types(self, types: GraphTypes) -> Graph:
        """Return the graph with other facts about its types."""
        return self._with(types=types)

    def without_labels(
        self, num_classes: int, *, multilabel: bool, real: bool = False, class_names: tuple[str, ...] = ()
    ) -> Graph:
        """Return the same nodes, arcs and features with `num_classes` classes and without labels and masks."""
        columns = multilabel or real
        y = np.zeros((self.num_nodes, num_classes), np.float32) if columns else np.full(self.num_nodes, -1)
        none = np.zeros((self.num_nodes, 1), dtype=bool)
        return self._with(y=y, **_masks((none,) * 3), num_classes=num_classes, real=real, class_names=class_names)

    def with_split(self, split: str, seed: int) -> Graph:
        """Return the graph with a random split: `random:60/20/20` of the labelled nodes, drawn by the seed."""
        if "y" in self.lacks:
            raise InputError(f"{self.name} has no labels, and --split {split} draws among labelled nodes: leave it out")
        rows, drawn = self.types.target_ids, {}
        for name, mask in draw_masks(self.y[rows], split, seed).items():
            drawn[name] = np.zeros(self.num_nodes, dtype=bool)
            drawn[name][rows] = mask
        masks = check_masks(drawn, self.num_nodes)
        return self._with(**_masks(masks), lacks=())

    def as_classes(self) -> Graph:
        """Return the graph with real labels read as class numbers, which must be integers from 0 on."""
        if not whole_numbers(self.y):
            raise InputError(
                f"{self.name} has real numbers for labels: use --task regression, or give y as integers from 0 on"
            )
        y = as_classes(self.y)
        return self._with(y=y, num_classes=int(y.max()) + 1, real=False)

    def noted(self, *notes: str) -> Graph:
        """Return the graph with additional remarks, which a run prints."""
        return self._with(notes=(*self.notes, *notes))

    def need_labels(self) -> None:
        """Refuse a graph whose nodes cannot be trained on."""
        if self.lacks:
            draw = "" if "y" in self.lacks else " (--split random:60/20/20 draws them)"
            raise InputError(
                f"{self.name} lacks {', '.join(self.lacks)}: training needs labels and three masks{draw}; "
                "only --task link and `fullgraph predict RUN --graph ...` do not need them"
            )

    def is_symmetric(self) -> bool:
        """Whether every arc has its reverse, equally often and with the same weight:  A = A^T."""
        return csr.symmetric(self.indptr, self.indices, self.edge_weight)

    def __repr__(self) -> str:
        kind = "real numbers" if self.real else "multi-label" if self.multilabel else "classes"
        return (
            f"Graph({self.name!r}, {self.num_nodes:,} nodes, {self.num_arcs:,} edges, "
            f"{self.num_features} features, {self.num_classes} {kind}, {self.num_splits} split(s))"
        )


def _rows(parts: tuple[Array, Array, Array | None]) -> dict[str, Any]:
    return dict(zip(("indptr", "indices", "edge_weight"), parts, strict=True))


def _masks(three: Sequence[Array]) -> dict[str, Any]:
    return dict(zip(MASKS, three, strict=True))
