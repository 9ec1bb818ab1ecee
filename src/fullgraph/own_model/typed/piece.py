"""A small piece of a typed graph for the self-check: values by node type and relation, cut to some nodes and edges.

Legend: m rows and a edges of the piece.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.data.fields import check_fields
from fullgraph.data.splits import MASKS
from fullgraph.graph_types import EDGE_TYPE, NODE_TYPE, GraphTypes
from fullgraph.own_model.piece import ROWS, Piece
from fullgraph.own_model.typed.views import TypedView
from fullgraph.placement.rank_graph import Relation
from fullgraph.train.spread import Held


@dataclass(frozen=True, eq=False, kw_only=True)
class TypedPiece(Piece):
    """Some rows of each type, and the edges between them."""

    view: TypedView
    types: GraphTypes  # of the piece

    @classmethod
    def of(cls, piece: Piece, view: TypedView) -> "TypedPiece":
        """A piece of the union with its types and relations."""
        type_n, type_e = view.graph.rows.fields[NODE_TYPE].cpu(), view.graph.arcs.fields[EDGE_TYPE].cpu()
        kinds, relations = type_n[piece.rows_m], type_e[piece.arcs_a]
        old = view.types
        types = replace(
            old,
            nodes=tuple(replace(fact, nodes=int((kinds == n).sum())) for n, fact in enumerate(old.nodes)),
            relations=tuple(replace(fact, edges=int((relations == n).sum())) for n, fact in enumerate(old.relations)),
        )
        assert piece.graph.edge_attr is not None
        in_order = relations[torch.from_numpy(piece.graph.edge_attr[:, 0].copy()).long()]
        fields = {NODE_TYPE: kinds.numpy(), EDGE_TYPE: in_order.numpy()}
        target = view.types.metadata()[0].index(view.types.target)
        masks = {name: getattr(piece.graph, name) & (kinds == target).numpy() for name in MASKS}
        checked = check_fields(fields, piece.graph.num_nodes, piece.graph.num_arcs)
        graph = piece.graph._with(**masks, fields=checked, types=types)
        return cls(**vars(piece) | {"graph": graph}, view=view, types=types)

    @cached_property
    def _place_n(self) -> Tensor:
        """The position of each owned row of the real graph among those of its type."""
        return _places(self.view.apart.rows.values(), self.sizes[0])

    @cached_property
    def _place_e(self) -> Tensor:
        return _places(self.view.apart.edges.values(), self.sizes[1])

    def cut(self, value: Any, name: str, nodes: Tensor, arcs: Tensor) -> Any:
        if not isinstance(value, Mapping):
            nodes = self.of_type(self.types.target, nodes)
            return _double(value, self._place_n[self.rows_m[nodes]]) if isinstance(value, Tensor) else value
        found = {}
        for key, x in value.items():
            if isinstance(key, tuple):
                found[key] = _double(x, self._place_e[self.arcs_a[arcs[self._relation_of(arcs) == self._number(key)]]])
            else:
                rows = self.of_type(key, nodes)
                ids = self.numbers is not None and torch.equal(x.cpu(), self.view.parts[key].numbers.cpu())
                found[key] = rows - self._start(key) if ids else _double(x, self._place_n[self.rows_m[rows]])
        return found

    def of_type(self, kind: str, nodes: Tensor) -> Tensor:
        low = self._start(kind)
        return nodes[(nodes >= low) & (nodes < low + self._count(kind))]

    def _start(self, kind: str) -> int:
        return self.types.starts[self._names.index(kind)]

    def _count(self, kind: str) -> int:
        return self.types.nodes[self._names.index(kind)].nodes

    @cached_property
    def _names(self) -> list[str]:
        return self.types.metadata()[0]

    def _number(self, relation: Relation) -> int:
        return self.types.metadata()[1].index(relation)

    def _relation_of(self, arcs: Tensor) -> Tensor:
        return self.view.graph.arcs.fields[EDGE_TYPE].cpu()[self.arcs_a[arcs]]

    def edge_index(self) -> dict[Relation, Tensor]:
        source, target = torch.from_numpy(self.graph.edge_index.astype("int64"))
        assert self.graph.edge_attr is not None
        relation = self._relation_of(torch.from_numpy(self.graph.edge_attr[:, 0].copy()).long())
        found = {}
        for number, name in enumerate(self.types.metadata()[1]):
            of = relation == number
            found[name] = torch.stack([source[of] - self._start(name[0]), target[of] - self._start(name[2])])
        return found

    def targets(self, nodes: Tensor) -> Tensor:
        return self.of_type(self.types.target, nodes) - self._start(self.types.target)

    @property
    def target(self) -> str:
        return self.types.target

    def counts(self) -> dict[str, Any]:
        return {"num_nodes_dict": {kind.name: kind.nodes for kind in self.types.nodes}}

    def opened(self, **given: Any) -> TypedView:
        return TypedView(**given, types=self.types)

    def held(self, kind: str, nodes: Tensor) -> Held:
        return Held(self.of_type(kind, nodes) - self._start(kind), self._count(kind))

    def real(self, kind: str) -> Held:
        rows = self.of_type(kind, torch.arange(len(self.rows_m)))
        part = self.view.parts[kind]
        return Held(part.numbers.cpu()[self._place_n[self.rows_m[rows]]], part.num_nodes)


def _places(groups: Any, size: int) -> Tensor:
    places = torch.zeros(size, dtype=torch.int64)
    for group in groups:
        places[group.cpu()] = torch.arange(len(group))
    return places


def _double(value: Any, rows: Tensor) -> Any:
    if not isinstance(value, Tensor) or not value.dim():
        return value
    value = value.detach().cpu()[rows]
    return value.double() if value.is_floating_point() else value


def begin(view: TypedView) -> tuple[Tensor, int]:
    """The rows of each type from which a piece begins, and its number of rows."""
    each = max(3, ROWS // (4 * len(view.parts)))
    return torch.cat([rows[:each] for rows in view.apart.rows.values()]).cpu(), max(ROWS, 2 * each * len(view.parts))
