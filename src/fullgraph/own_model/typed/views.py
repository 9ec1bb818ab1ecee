"""One rank's rows by node type and edges by relation, as a model written for PyG's `HeteroData` reads them.

Legend: n owned rows of all types; of one type k owned rows and D features; a edges of a relation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Sides
from fullgraph.graph_types import GraphTypes
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.own_model.constants import Constant
from fullgraph.own_model.pyg_view import EXACT, PygView, kept
from fullgraph.own_model.rows.place import refuse
from fullgraph.own_model.rows.spaces import SAME, Ends, Rows, Sets, Space, mark
from fullgraph.placement import RankGraph
from fullgraph.placement.by_type import ByType, by_type
from fullgraph.placement.holding.adjacency import Arcs
from fullgraph.placement.rank_graph import Relation


@dataclass(eq=False, kw_only=True)
class TypedView(PygView):
    """The rows of all types; `parts` has those of each type, and exchanges them."""

    types: GraphTypes

    @kept
    def apart(self) -> ByType:
        return by_type(self.graph, self.types)

    @cached_property
    def parts(self) -> "dict[str, TypeView]":
        """The view of each node type."""
        rows, counts = self.apart.graph.nodes, {kind.name: kind.nodes for kind in self.types.nodes}
        parts = {kind: self._part(kind, RankGraph.of(rows[kind], _no_arcs(rows[kind])), counts[kind]) for kind in rows}
        for part in parts.values():  # a checkpoint holds them under their names
            part._channels, part._loaded = self._channels, self._loaded
        return parts

    def _part(self, kind: str, graph: RankGraph, nodes: int) -> "TypeView":
        return TypeView(**self._of_part(kind, graph, nodes), whole=self)

    def _of_part(self, kind: str, graph: RankGraph, nodes: int) -> dict[str, Any]:
        constants: dict[str, Constant] = self.once(f"constants of {kind}", dict)
        return self._shared(kind) | {"graph": graph, "num_nodes": nodes, "constants": constants}

    def _shared(self, kind: str) -> dict[str, Any]:
        """The arguments that all views of parts of this graph have in common."""
        return {
            "transport": self.transport, "counts": self.counts, "name": self.name, "wires": self.wires,
            "clock": self.clock, "rules": self.rules, "kind": kind, "_fixed": self.once(f"of {kind}", dict),
        }  # fmt: skip

    def at(self, nodes: Space) -> PygView:
        found = next((part for part in self.parts.values() if part.nodes is nodes), None)
        if found is None and nodes is not self.nodes and not nodes.is_like(self.nodes):
            refuse("rows of some nodes of a type, or of some types, are read by edges; give the rows of all nodes")
        return self if found is None else found

    @kept
    def relations(self) -> dict[Relation, Space]:
        """The edges of each relation into owned nodes."""
        return {name: self._edges(name, edges_a) for name, edges_a in self.apart.edges.items()}

    def _edges(self, name: Relation, edges_a: Tensor) -> Space:
        source, _, target = name

        def ids() -> Tensor:
            return self.arc_ids[edges_a]

        return Space(
            "edges", len(edges_a), ids=ids, edge_ids=ids, targets=lambda: self.apart.edge_index[name][1], whole=True,
            ends=(self.parts[source].nodes, self.parts[target].nodes),
        )  # fmt: skip

    @cached_property
    def between(self) -> "dict[Relation, RelationView]":
        """The view of each relation."""
        return {name: self._relation(name, edges) for name, edges in self.relations.items()}

    def _relation(self, name: Relation, edges: Space) -> "RelationView":
        return RelationView(**self._of_relation(name, edges))

    def _of_relation(self, name: Relation, edges: Space) -> dict[str, Any]:
        source, target = self.parts[name[0]], self.parts[name[2]]
        return self._shared("__".join(name)) | {
            "graph": RankGraph.of(target.graph.rows, self.apart.graph.edges[name]), "num_nodes": target.num_nodes,
            "whole": self, "ends": (source, target), "space": edges, "relation": name,
        }  # fmt: skip

    def over(self, edges: Space) -> "RelationView | None":
        return next((view for view in self.between.values() if view.space is edges), None)

    @kept
    def sets(self) -> Sets:
        return Sets(self.nodes, self.edges, (*(part.nodes for part in self.parts.values()), *self.relations.values()))

    @kept
    def marked_edge_index(self) -> dict[Relation, Tensor]:  # type: ignore[override]
        """The edge_index of each relation, marked so that no other tensor is taken for it."""
        found = self.apart.edge_index
        return {
            name: mark(found[name].detach(), Rows(edges, 1, points=Ends.BOTH)) for name, edges in self.relations.items()
        }

    @property
    def features(self) -> dict[str, Tensor]:  # type: ignore[override]
        """Features of the types that have any."""
        return self.apart.x

    @kept
    def joined_edge_index(self) -> Tensor:
        """The edges of all relations, one relation after another: ends among the rows of all types."""
        edges = self.sets.joined(list(self.relations.values()))
        edges._ends = self.nodes, self.nodes
        with torch._C.DisableTorchFunction():
            order_e = torch.cat(list(self.apart.edges.values()))
            return mark(self.edge_index[:, order_e], Rows(edges, 1, points=Ends.BOTH))

    @property
    def target(self) -> "TypeView":
        return self.parts[self.types.target]

    def named_inputs(self) -> dict[str, Any]:
        """The graph's values for a model's arguments beside the features and edges."""
        apart, target = self.apart, self.types.target
        found: dict[str, Any] = {
            "node_id": apart.numbers,
            "edge_weight": apart.edge_weight or None,
            "edge_attr": apart.edge_attr or None,
        }
        rows = apart.graph.nodes[target]
        labels = {"y": rows.y, **{f"{split}_mask": mask for split, mask in rows.masks.items()}}
        by_type = found | {name: {target: value} for name, value in labels.items()}
        return found | labels | {f"{name}_dict": value for name, value in by_type.items()}

    def marked(self, value: Any) -> Any:
        """A model's argument by type or relation, or of the target type's nodes, marked as rows of these."""
        if isinstance(value, Mapping):
            return {
                key: mark(x, Rows(self.rows_of(key), 0)) if isinstance(x, Tensor) else x for key, x in value.items()
            }
        if not isinstance(value, Tensor):
            return value
        nodes = self.target.nodes
        return mark(value, Rows(nodes, 0) if value.dim() and len(value) == nodes.size else SAME)

    def _of(self, key: Any, x: Tensor) -> Tensor:
        return mark(x, Rows(self.rows_of(key), 0))

    def rows_of(self, key: Any) -> Space:
        """The nodes of a type, or the edges of a relation."""
        found = self.relations.get(key) if isinstance(key, tuple) else self.parts.get(key)
        if found is None:
            known = ", ".join(map(str, (*self.parts, *self.relations)))
            raise InputError(f"{key} is not a node type or relation of this graph: {known}")
        return found if isinstance(found, Space) else found.nodes

    def check_rows(self, x: Any, rows: str) -> None:
        for kind, value in x.items():
            if kind not in self.parts:
                raise InputError(f"x_dict has {kind}, which is not a node type of this graph: {', '.join(self.parts)}")
            if isinstance(value, Tensor):
                self.parts[kind].check_rows(value, f"{rows} of {kind}")

    def of_union(self, rows: Tensor) -> Tensor:
        """Rows of the target type among those of all types, zeros elsewhere."""
        out = rows.new_zeros(len(self.ids), *rows.shape[1:])
        return out.index_copy(0, self.apart.rows[self.types.target], rows)


@dataclass(eq=False, kw_only=True)
class TypeView(PygView):
    """The owned and halo rows of one node type."""

    whole: TypedView

    @property
    def numbers(self) -> Tensor:
        return self.whole.apart.numbers[self.kind]

    @property
    def sets(self) -> Sets:
        return self.whole.sets

    @kept
    def _grades(self) -> Sides:
        grades, apart = self.whole._grades, self.whole.apart
        return Sides(grades.owned[apart.rows[self.kind]], grades.halo[apart.halo[self.kind]])

    def crossing(self, name: str, layer: int, *, exact: bool) -> Channel:
        wire = EXACT if exact else self.wires.at(layer)
        return self.channel(f"{name} of {self.kind}", lambda: self._build(f"{name} of {self.kind}", wire))

    def exact_crossing(self, name: str, route: Any) -> Channel:
        return super().exact_crossing(f"{name} of {self.kind}", route)

    def reduce(self, x: Tensor) -> Tensor:
        return self.whole.reduce(x)


@dataclass(eq=False, kw_only=True)
class RelationView(PygView):
    """The edges of one relation: from the rows of one type, which cross, to owned rows of the same or another type.

    Rows cross as they are, once for all relations that read them.
    """

    whole: TypedView
    ends: tuple[TypeView, TypeView]  # of sources, of targets
    space: Space  # the edges
    relation: Relation

    @property
    def targets(self) -> TypeView:
        return self.ends[1]

    @property
    def sources(self) -> TypeView:
        return self.ends[0]

    @property
    def nodes(self) -> Space:
        return self.targets.nodes

    @property
    def edges(self) -> Space:
        return self.space

    @property
    def sets(self) -> Sets:
        return self.whole.sets

    @property
    def arc_ids(self) -> Tensor:
        return self.space.ids

    @property
    def features(self) -> Tensor:
        """Features of the sources."""
        return self.sources.features

    @property
    def known_sources(self) -> Tensor:
        return self.sources.known_sources

    def reduce(self, x: Tensor) -> Tensor:
        return self.whole.reduce(x)

    def plan(self, x: Tensor, layer: int, shape: LayerShape) -> LayerPlan:
        return LayerPlan(layer=layer, sends="input", width=shape.in_width, rows=self.num_nodes)


def _no_arcs(rows: Any) -> Arcs:
    none = torch.zeros(0, dtype=torch.int32, device=rows.ids.device)
    return Arcs(none.new_zeros(len(rows.ids) + 1, dtype=torch.int64), none, None, len(rows.halo_ids))
