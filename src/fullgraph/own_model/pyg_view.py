"""One rank's rows and arcs in PyG's form, and the channels that fetch its halo.

Legend: n owned rows, h halo rows, e arcs into owned rows, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fullgraph.exchange import Channel, RowFacts, Sides, Wire
from fullgraph.nn.layer_plan import Known, LayerPlan, LayerShape
from fullgraph.ops import Structure, spmm
from fullgraph.ops.hashing import pair_ids
from fullgraph.own_model.constants import Constant
from fullgraph.own_model.rows.spaces import Ends, Rows, Sets, Space, mark
from fullgraph.placement import RankView
from fullgraph.placement.halo import boundary_grades, halo_of
from fullgraph.placement.holding.adjacency import Matrices, build
from fullgraph.plan import Route

EXACT = Wire()
T = TypeVar("T")


@dataclass(eq=False, kw_only=True)
class PygView(RankView):
    """Rows and edges as a model written for PyG reads them, and the channels that fetch its halo."""

    _fixed: dict[str, Any] = field(default_factory=dict)  # constants by name; views of the same rows share it

    constants: dict[str, Constant] = field(default_factory=dict)  # by the name of their exchange; shared as well

    @property
    def num_owned(self) -> int:
        return len(self.ids)

    @property
    def all_ids(self) -> Tensor:
        """Global ids [n+h] of owned, then halo rows."""
        return self.once("all_ids", self._all_ids)

    def _all_ids(self) -> Tensor:
        return torch.cat([self.ids, self.graph.rows.halo_ids])

    @property
    def edge_index(self) -> Tensor:
        """Edges [2, e]: sources among owned and halo rows, targets among owned rows."""
        return self.graph.edge_index

    @property
    def nodes(self) -> Space:
        """The owned nodes, a subset of all nodes."""
        return self.once("nodes", self._nodes)

    def _nodes(self) -> Space:
        ids = self.ids
        return Space(
            "nodes", len(ids), ids=lambda: ids, targets=lambda: torch.arange(len(ids), device=ids.device),
            edge_ids=lambda: pair_ids(ids, ~ids), total=self.num_nodes, whole=True,
        )  # fmt: skip

    @property
    def node_rows(self) -> Rows:
        """The mark of a tensor with a row for each owned node."""
        return self.once("node rows", lambda: Rows(self.nodes, 0))

    @property
    def edges(self) -> Space:
        """The edges into owned nodes, a subset of all edges."""
        return self.once("edges", self._edges)

    def _edges(self) -> Space:
        return Space(
            "edges", self.edge_index.shape[1], ids=lambda: self.arc_ids, targets=lambda: self.edge_index[1],
            edge_ids=lambda: self.arc_ids, whole=True,
        )  # fmt: skip

    @property
    def sets(self) -> Sets:
        """The sets of rows that the model has derived from this graph."""
        return self.once("sets", lambda: Sets(self.nodes, self.edges))

    @property
    def marked_edge_index(self) -> Tensor:
        """The edge_index that a model receives, marked so that no other tensor is taken for it."""
        rows = Rows(self.edges, 1, points=Ends.BOTH)
        return self.once("marked edge_index", lambda: mark(self.edge_index.detach(), rows))

    @property
    def arc_ids(self) -> Tensor:
        """An id of each arc in the whole graph: its target, and its place among the arcs into it."""
        return self.once("arc_ids", self._arc_ids)

    def _arc_ids(self) -> Tensor:
        target, indptr = self.edge_index[1], self.graph.arcs.indptr
        place = torch.arange(len(target), device=target.device) - indptr[target]
        return pair_ids(self.ids[target], place)

    @property
    def features(self) -> Tensor:
        """Input rows [n, D]."""
        x = self.graph.rows.x
        assert isinstance(x, Tensor)
        return x

    @property
    def known_sources(self) -> Tensor:
        """Features [n+h, D] of owned and halo rows; they never change, so they cross once."""
        return self.once("known sources", self._fetch_inputs)

    def _fetch_inputs(self) -> Tensor:
        return torch.cat(
            [self.features, halo_of(self.graph.rows.route, self.features, self.transport, f"setup/{self.name} inputs")]
        )

    @property
    def pattern(self) -> Structure:
        """The arcs into owned rows; columns are owned, then halo rows."""
        return self.once("pattern", self._pattern)

    def _pattern(self) -> Structure:
        arcs = self.graph.arcs
        with torch._C.DisableTorchFunction():  # a layer may need it before its trusted calls begin
            pattern = Structure(arcs.indptr, arcs.indices, arcs.num_owned + arcs.num_halo)
        return pattern.paired(pattern, None) if arcs.undirected and not arcs.num_halo else pattern

    def once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._fixed:
            self._fixed[name] = make()
        value: T = self._fixed[name]
        return value

    def crossing(self, name: str, layer: int, *, exact: bool) -> Channel:
        """The channel of that name; `layer` selects its wire."""
        return self.channel(name, lambda: self._build(name, EXACT if exact else self.wires.at(layer)))

    def exact_crossing(self, name: str, route: Route) -> Channel:
        """The channel of that name over any route between owned and halo rows."""
        return self.channel(
            name,
            lambda: EXACT.build(name=f"{self.name}/{name}", route=route, transport=self.transport, clock=self.clock),
        )

    def _build(self, name: str, wire: Any) -> Channel:
        channel: Channel = wire.build(
            name=f"{self.name}/{name}",
            route=self.graph.rows.route,
            transport=self.transport,
            clock=self.clock,
            facts=RowFacts(
                ids=Sides(self.ids, self.graph.rows.halo_ids),
                grades=self.once("grades", self._graded) if wire.graded else None,
                summed=None,
            ),
        )
        return channel

    def _graded(self) -> Sides:
        name = f"setup/{self.name} own-model grades"
        degree_n, route = self.graph.arcs.indptr.diff().cpu(), self.graph.rows.route
        owned = boundary_grades(degree_n, route, self.transport, f"{name} of owned rows").to(self.ids.device)
        return Sides(owned, halo_of(route, owned, self.transport, name))

    def matrices(self, aggregation: str, *, weighted: bool) -> Matrices:
        """The matrix of an aggregation over these rows, normalised with global degrees."""
        arcs = self.graph.arcs if weighted else replace(self.graph.arcs, weight=None)
        name = f"{aggregation}{' weighted' if weighted else ''}"

        def of_halo(values: Tensor) -> Tensor:
            return halo_of(self.graph.rows.route, values, self.transport, f"setup/{self.name} {name} degrees")

        return self.once(name, lambda: build(arcs, aggregation, of_halo, self.features.dtype))

    def known_aggregate(self, aggregation: str, *, weighted: bool) -> Tensor:
        """The aggregation of the input features, which never change."""

        def product() -> Tensor:
            matrices = self.matrices(aggregation, weighted=weighted)
            with torch.no_grad():
                inner = spmm(matrices.inner, self.features)
                return spmm(matrices.outer, self.known_sources[self.num_owned :], inner)

        return self.once(f"inputs {aggregation} {weighted}", product)

    def plan(self, x: Tensor, layer: int, shape: LayerShape) -> LayerPlan:
        """What a layer on our kernels sends of x; features that it reads are fetched once."""
        known: Known = "" if x is not self.features else "halo" if shape.attends else "aggregate"
        return self.rules.plan(layer, shape, known=known, sparse=False, rows=self.num_nodes)
