"""A rank's part of a typed graph, taken apart: rows by node type, edges by relation.

Legend: n owned rows, h halo rows of the union; a edges of a relation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.graph_types import EDGE_TYPE, NODE_TYPE, GraphTypes, RelationFact
from fullgraph.nn.view import Features
from fullgraph.ops.transpose import indptr_of
from fullgraph.placement.holding.adjacency import Arcs
from fullgraph.placement.rank_graph import NodeRows, RankGraph, Relation
from fullgraph.plan import HaloRoute


@dataclass(frozen=True, eq=False)
class ByType:
    """The graph by type and relation, and the places of its rows and edges in the union's."""

    graph: RankGraph
    types: GraphTypes
    rows: Mapping[str, Tensor]  # positions of a type's owned rows among the n
    halo: Mapping[str, Tensor]  # positions of its halo rows among the h
    edges: Mapping[Relation, Tensor]  # positions [a] of a relation's edges

    @cached_property
    def edge_index(self) -> dict[Relation, Tensor]:
        """Edges [2, a]: sources among owned and halo rows of the source type, targets among owned rows."""
        return {name: torch.stack([arcs.indices.long(), arcs.targets()]) for name, arcs in self.graph.edges.items()}

    @property
    def x(self) -> dict[str, Tensor]:
        """Features of the types that have any."""
        nodes = self.graph.nodes.items()
        return {kind: rows.x for kind, rows in nodes if isinstance(rows.x, Tensor) and rows.x.shape[1]}

    @cached_property
    def numbers(self) -> dict[str, Tensor]:
        """The number of each owned node among those of its type."""
        starts = zip(self.types.starts, self.graph.nodes.items(), strict=False)
        return {kind: rows.ids - start for start, (kind, rows) in starts}

    @cached_property
    def edge_weight(self) -> dict[Relation, Tensor]:
        weights = {name: self.graph.edges[name].weight for name, fact in self._facts if fact.weighted}
        return {name: weight for name, weight in weights.items() if weight is not None}

    @cached_property
    def edge_attr(self) -> dict[Relation, Tensor]:
        attrs = {name: (self.graph.edges[name].attr, fact.features) for name, fact in self._facts if fact.features}
        return {name: attr[:, :width] for name, (attr, width) in attrs.items() if attr is not None}

    @property
    def _facts(self) -> list[tuple[Relation, RelationFact]]:
        return list(zip(self.graph.edges, self.types.relations, strict=True))

    def store(self, key: str | Relation) -> SimpleNamespace:
        """The values of one node type or relation, by name."""
        if isinstance(key, tuple) and key in self.edges:
            found = {"edge_index": self.edge_index, "edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
            return SimpleNamespace(**{name: values[key] for name, values in found.items() if key in values})
        if isinstance(key, tuple) or key not in self.rows:
            known = ", ".join(map(str, (*self.rows, *self.edges)))
            raise InputError(f"{key} is not a node type or relation of this graph: {known}")
        rows = self.graph.nodes[key]
        labels = {"y": rows.y, **{f"{split}_mask": mask for split, mask in rows.masks.items()}}
        values = {"node_id": self.numbers[key], "num_nodes": len(rows.ids)} | (
            labels if key == self.types.target else {}
        )
        return SimpleNamespace(**values, **({"x": self.x[key]} if key in self.x else {}))


def by_type(union: RankGraph, types: GraphTypes) -> ByType:
    """Take a union apart; its rows are sorted by id."""
    own = union.rows
    starts = torch.tensor(types.starts, device=own.ids.device)
    type_n = own.fields[NODE_TYPE].long()
    type_h = torch.bucketize(own.halo_ids, starts[1:], right=True)
    type_c = torch.cat([type_n, type_h])
    number_c = torch.empty_like(type_c)  # the position of each owned and halo row among those of its type
    rows, halo, nodes = dict[str, Tensor](), dict[str, Tensor](), dict[str, NodeRows]()
    for number, (kind, columns) in enumerate(types.columns()):
        of_type = (type_c == number).nonzero()[:, 0]
        number_c[of_type] = torch.arange(len(of_type), device=type_c.device)
        rows[kind.name] = (type_n == number).nonzero()[:, 0]
        halo[kind.name] = (type_h == number).nonzero()[:, 0]
        picked = own.picked(rows[kind.name])
        picked["fields"] = {name: x for name, x in picked["fields"].items() if name != NODE_TYPE}
        nodes[kind.name] = NodeRows(
            **picked | {"x": block(own.x, rows[kind.name], columns)},
            halo_ids=own.halo_ids[halo[kind.name]],
            route=_route(own.route, type_n == number, type_h == number),
        )
    edges, arcs = dict[Relation, Tensor](), dict[Relation, Arcs]()
    for number, fact in enumerate(types.relations):
        name = fact.source, fact.name, fact.target
        edges[name] = (union.arcs.fields[EDGE_TYPE] == number).nonzero()[:, 0]
        arcs[name] = _relation(union, edges[name], number_c, nodes[fact.source], nodes[fact.target])
    return ByType(RankGraph(nodes=nodes, edges=arcs), types, rows, halo, edges)


def _route(route: HaloRoute, of_n: Tensor, of_h: Tensor) -> HaloRoute:
    """The route of one type's rows."""
    number_n = torch.cumsum(of_n, 0) - 1
    sent, received = of_n[route.send_rows], of_h
    return HaloRoute(
        number_n[route.send_rows[sent]],
        tuple(int(part.sum()) for part in sent.split(list(route.send_counts))),
        tuple(int(part.sum()) for part in received.split(list(route.recv_counts))),
        int(of_n.sum()),
    )


def _relation(union: RankGraph, edges_a: Tensor, number_c: Tensor, sources: NodeRows, targets: NodeRows) -> Arcs:
    arcs = union.arcs
    into_a = number_c[arcs.targets()[edges_a]]  # ascending, as the union's rows are sorted by type
    counts = torch.bincount(into_a, minlength=len(targets.ids))
    picked = {name: values[edges_a] for name, values in arcs.fields.items() if name != EDGE_TYPE}
    return replace(
        arcs, indptr=indptr_of(counts), indices=number_c[arcs.indices[edges_a].long()],
        num_halo=len(sources.halo_ids), num_sources=len(sources.ids),
        fields=picked, weight=None if arcs.weight is None else arcs.weight[edges_a], undirected=False,
        attr=None if arcs.attr is None else arcs.attr[edges_a],
    )  # fmt: skip


def block(x: Features, rows: Tensor, columns: slice) -> Tensor:
    """Some rows of the union's features, over one type's columns, dense."""
    if isinstance(x, Tensor):
        return x[rows, columns]
    taken, width = x.take(rows), columns.stop - columns.start
    pattern, values = taken.structure, taken.weight
    assert values is not None
    dense = torch.zeros(len(rows), width, dtype=values.dtype, device=values.device)
    if not width:
        return dense
    return dense.index_put_((pattern.rows.long(), pattern.indices.long() - columns.start), values)


def union_x(union: RankGraph, types: GraphTypes) -> Tensor:
    """Features [n, D] of the union: side by side, a block of columns per type; of one width if all types have it."""
    x, there = union.with_dense_rows().rows.x, [pair for pair in types.columns() if pair[0].nodes]
    assert isinstance(x, Tensor)
    if union_width(types) == there[0][0].features:
        return torch.stack([x[:, columns] for _, columns in there]).sum(0)
    return x


def union_width(types: GraphTypes) -> int:
    """The columns of the union's features for a user's model."""
    widths = {kind.features for kind in types.nodes if kind.nodes}
    return widths.pop() if len(widths) == 1 else sum(kind.features for kind in types.nodes)
