"""One rank's rows and arcs in PyG's form, and the channels that fetch its halo.

Legend: n owned rows, h halo rows, e arcs into owned rows, D features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.exchange import Channel, RowFacts, Sides, Wire
from fullgraph.nn.layer_plan import Known, LayerPlan, LayerShape
from fullgraph.ops import Structure, spmm
from fullgraph.ops.hashing import pair_ids
from fullgraph.own_model.constants import Constant
from fullgraph.own_model.rows.spaces import Ends, Rows, Sets, Space, mark
from fullgraph.placement import RankView
from fullgraph.placement.halo import boundary_grades, halo_of
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build
from fullgraph.plan import Route

EXACT = Wire()
T = TypeVar("T")


class kept(cached_property[T]):  # used like cached_property
    """A property that is computed once for all views of the same rows."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        super().__init__(lambda view: view.once(self._name, lambda: make(view)))
        self.__doc__ = make.__doc__


@dataclass(eq=False, kw_only=True)
class PygView(RankView):
    """Rows and edges as a model written for PyG reads them, and the channels that fetch its halo."""

    _fixed: dict[str, Any] = field(default_factory=dict)  # constants by name; views of the same rows share it

    constants: dict[str, Constant] = field(default_factory=dict)  # by the name of their exchange; shared as well

    kind: str = ""  # of the nodes, if they are a part of a typed graph

    def at(self, nodes: Space) -> "PygView":
        """The view of these nodes; a graph without types has one."""
        return self

    @property
    def target(self) -> "PygView":
        """The rows that the loss reads."""
        return self

    @property
    def sources(self) -> "PygView":
        """The view of the rows that edges come from, which exchanges them."""
        return self

    @property
    def targets(self) -> "PygView":
        """The view of the rows that edges end in."""
        return self

    def over(self, edges: Space) -> "PygView | None":
        """The view for a layer over these edges; None if they are not the graph's, or not of one relation."""
        return self if edges is self.edges else None

    def check_rows(self, x: Any, rows: str) -> None:
        """Refuse an input with other rows than these."""
        size = len(x)
        if size != self.num_owned:
            raise InputError(
                f"x has {size} rows where {rows} has {self.num_owned}; call the model without arguments for the "
                "shard's own rows, or fg.evaluate for scores"
            )

    def of_union(self, rows: Tensor) -> Tensor:
        """Rows of `target` among all rows."""
        return rows

    @property
    def num_owned(self) -> int:
        return len(self.ids)

    @property
    def numbers(self) -> Tensor:
        """The numbers [n] of owned nodes among those of their type."""
        return self.ids

    @kept
    def all_ids(self) -> Tensor:
        """Global ids [n+h] of owned, then halo rows."""
        return torch.cat([self.ids, self.graph.rows.halo_ids])

    @property
    def edge_index(self) -> Tensor:
        """Edges [2, e]: sources among owned and halo rows, targets among owned rows."""
        return self.graph.edge_index

    @kept
    def nodes(self) -> Space:
        """The owned nodes, a subset of all nodes."""
        ids = self.ids
        return Space(
            "nodes", len(ids), ids=lambda: ids, targets=lambda: torch.arange(len(ids), device=ids.device),
            edge_ids=lambda: pair_ids(ids, ~ids), total=self.num_nodes, whole=True,
        )  # fmt: skip

    @kept
    def node_rows(self) -> Rows:
        """The mark of a tensor with a row for each owned node."""
        return Rows(self.nodes, 0)

    @kept
    def edges(self) -> Space:
        """The edges into owned nodes, a subset of all edges."""
        return Space(
            "edges", self.edge_index.shape[1], ids=lambda: self.arc_ids, targets=lambda: self.edge_index[1],
            edge_ids=lambda: self.arc_ids, whole=True, ends=(self.nodes, self.nodes),
        )  # fmt: skip

    @kept
    def sets(self) -> Sets:
        """The sets of rows that the model has derived from this graph."""
        return Sets(self.nodes, self.edges)

    @kept
    def marked_edge_index(self) -> Tensor:
        """The edge_index that a model receives, marked so that no other tensor is taken for it."""
        return mark(self.edge_index.detach(), Rows(self.edges, 1, points=Ends.BOTH))

    @kept
    def arc_ids(self) -> Tensor:
        """An id of each arc in the whole graph: its target, and its place among the arcs into it."""
        target, indptr = self.edge_index[1], self.graph.arcs.indptr
        place = torch.arange(len(target), device=target.device) - indptr[target]
        return pair_ids(self.ids[target], place)

    @property
    def features(self) -> Tensor:
        """Input rows [n, D]."""
        x = self.graph.rows.x
        assert isinstance(x, Tensor)
        return x

    @kept
    def known_sources(self) -> Tensor:
        """Features [n+h, D] of owned and halo rows; they never change, so they cross once."""
        name = f"setup/{self.name} inputs{self.kind and f' of {self.kind}'}"
        return torch.cat([self.features, halo_of(self.graph.rows.route, self.features, self.transport, name)])

    @kept
    def pattern(self) -> Structure:
        """The arcs into owned rows; columns are owned, then halo rows."""
        arcs = self.graph.arcs
        with torch._C.DisableTorchFunction():  # a layer may need it before its trusted calls begin
            pattern = Structure(arcs.indptr, arcs.indices, arcs.owned_columns + arcs.num_halo)
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
                grades=self._grades if wire.graded else None,
                summed=None,
            ),
        )
        return channel

    @kept
    def _grades(self) -> Sides:
        name = f"setup/{self.name} own-model grades"
        degree_n, route = self.graph.arcs.indptr.diff().cpu(), self.graph.rows.route
        owned = boundary_grades(degree_n, route, self.transport, f"{name} of owned rows").to(self.ids.device)
        return Sides(owned, halo_of(route, owned, self.transport, name))

    def matrices(self, aggregation: str, *, weighted: bool) -> Matrices:
        """The matrix of an aggregation over these rows, normalised with global degrees."""
        arcs = self.graph.arcs if weighted else replace(self.graph.arcs, weight=None)
        name = f"{aggregation}{' weighted' if weighted else ''}"
        return self.once(name, lambda: self._matrices(arcs, aggregation, name))

    def _matrices(self, arcs: Arcs, aggregation: str, name: str) -> Matrices:
        def of_halo(values: Tensor) -> Tensor:
            key = f"setup/{self.name} {name}{self.kind and f' of {self.kind}'} degrees"
            return halo_of(self.sources.graph.rows.route, values, self.transport, key)

        return build(arcs, aggregation, of_halo, self.features.dtype)

    def known_aggregate(self, aggregation: str, *, weighted: bool) -> Tensor:
        """The aggregation of the input features, which never change."""

        def product() -> Tensor:
            matrices = self.matrices(aggregation, weighted=weighted)
            with torch.no_grad():
                inner = spmm(matrices.inner, self.features)
                return spmm(matrices.outer, self.known_sources[self.sources.num_owned :], inner)

        return self.once(f"inputs {aggregation} {weighted}", product)

    def plan(self, x: Tensor, layer: int, shape: LayerShape) -> LayerPlan:
        """The plan of a layer on our kernels for input x; features that it reads are fetched once."""
        known: Known = "" if x is not self.features else "halo" if shape.attends else "aggregate"
        return self.rules.plan(layer, shape, known=known, sparse=False, rows=self.num_nodes)
