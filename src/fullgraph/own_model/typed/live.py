"""Live rows of a typed graph: of each type the rows, and of each relation the edges, that a layer reads.

Legend: of a type k owned rows; of a part of them r rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel, Sides
from fullgraph.own_model.live_view import Keep, Needed, Picked
from fullgraph.own_model.pyg_view import EXACT, PygView, kept
from fullgraph.own_model.rows.spaces import Ends, Rows, Space, mark, rows_of
from fullgraph.own_model.typed.views import RelationView, TypedView, TypeView
from fullgraph.placement import RankGraph
from fullgraph.placement.holding.adjacency import Arcs, Matrices
from fullgraph.placement.rank_graph import Relation


@dataclass(eq=False, kw_only=True)
class LiveTyped(TypedView):
    """The part of a typed view that a layer reads."""

    full: TypedView
    need: Needed  # of the rows and edges of all types

    @classmethod
    def within(cls, full: PygView, live_n: Tensor, name: str) -> "LiveTyped":
        """The part that computes the rows `live_n`, among them one of each type."""
        assert isinstance(full, TypedView)
        need = Needed.of(full, live_n, name)
        view = cls(
            graph=need.graph, transport=full.transport, num_nodes=full.num_nodes, counts=full.counts, name=full.name,
            wires=full.wires, clock=full.clock, rules=full.rules, types=full.types, full=full, need=need,
        )  # fmt: skip
        view._channels, view._loaded = full._channels, full._loaded  # a checkpoint holds them under their names
        return view

    def part_of(self, view: PygView) -> "LiveRelation":
        """The part of a relation that a layer runs over."""
        assert isinstance(view, RelationView)
        part = self.between[view.relation]
        assert isinstance(part, LiveRelation)
        return part

    def picked_of(self, kind: str) -> Picked:
        """The rows of a type."""
        need, apart = self.need, self.full.apart
        owned = apart.rows[kind]
        return Picked.of(need.keep_n[owned], need.read_h[apart.halo[kind]], need.live_n[owned])

    def _part(self, kind: str, graph: RankGraph, nodes: int) -> "LiveType":
        return LiveType(
            **self._of_part(kind, graph, nodes), whole=self, full=self.full.parts[kind], picked=self.picked_of(kind)
        )

    def _relation(self, name: Relation, edges: Space) -> "LiveRelation":
        edges_a = self.need.into_e[self.full.apart.edges[name]].nonzero()[:, 0]
        return LiveRelation(**self._of_relation(name, edges), full=self.full.between[name], edges_a=edges_a)


@dataclass(eq=False, kw_only=True)
class LiveType(TypeView):
    """The rows of a type that a layer reads."""

    full: TypeView
    picked: Picked

    @property
    def features(self) -> Tensor:
        """Features [r, D], once a layer has been given them; no columns before."""
        x: Tensor = self._fixed.get("features", self.graph.rows.x)
        return x

    @kept
    def known_sources(self) -> Tensor:
        halo = self.full.known_sources[self.full.num_owned :]
        return torch.cat([self.features, halo.index_select(0, self.picked.halo_h)])

    @kept
    def _grades(self) -> Sides:
        grades = self.full._grades
        return Sides(grades.owned[self.picked.rows_r], grades.halo[self.picked.halo_h])

    def crossing(self, name: str, layer: int, *, exact: bool) -> Channel:
        """Messages have the names of the full view's, by which some wires draw; checkpoints tell both apart."""
        wire = EXACT if exact else self.wires.at(layer)
        return self.channel(f"live {name} of {self.kind}", lambda: self._build(f"{name} of {self.kind}", wire))

    def given(self, x_kD: Tensor, keep: Keep) -> Tensor:
        """The part's rows of a tensor with a row per node of the type."""
        if x_kD is self.full.features:
            x = self.once("features", lambda: self.picked.pick(x_kD))
        else:
            x = keep(x_kD, self, lambda: self.picked.pick(x_kD))
        return mark(x, self.node_rows)


@dataclass(eq=False, kw_only=True)
class LiveRelation(RelationView):
    """The edges of a relation that a layer reads."""

    full: RelationView
    edges_a: Tensor  # positions among the full view's edges

    def _matrices(self, arcs: Arcs, aggregation: str, name: str) -> Matrices:
        """Normalised with the degrees of the whole graph: the part lacks edges into rows that it only reads."""
        built = super()._matrices(arcs, aggregation, name)
        if aggregation != "gcn":
            return built
        assert isinstance(self.sources, LiveType)
        return self.sources.picked.scaled_as(self.full.matrices(aggregation, weighted=arcs.weight is not None), built)

    def given(self, value: Any, keep: Keep) -> Any:
        """A layer's argument for this part; NotImplemented if it is not known which of its rows to take."""
        if isinstance(value, tuple):
            pair = tuple(self.given(x, keep) for x in value)
            return NotImplemented if any(x is NotImplemented for x in pair) else pair
        if not isinstance(value, Tensor):
            return NotImplemented if isinstance(value, list | dict) else value
        rows, full = rows_of(value), self.full
        if rows is None or not rows.is_single:
            return NotImplemented
        if rows.space is full.space and rows.points is Ends.BOTH:
            return self.whole.marked_edge_index[self.relation]
        if rows.dim or rows.points is not None:
            return NotImplemented
        if value is full.graph.arcs.weight:
            weight = self.graph.arcs.weight
            assert weight is not None
            return mark(weight, Rows(self.space, 0))
        if rows.space is full.space:
            return mark(value.index_select(0, self.edges_a), Rows(self.space, 0))
        part = next((part for part in self.ends if isinstance(part, LiveType) and part.full.nodes is rows.space), None)
        return NotImplemented if part is None else part.given(value, keep)

    def spread(self, out_rD: Tensor) -> Tensor:
        """A layer's output for all rows of the target type."""
        target = self.ends[1]
        assert isinstance(target, LiveType)
        return target.picked.spread(out_rD)
