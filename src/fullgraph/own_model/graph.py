"""One rank's rows and arcs as a PyG model sees them, and the channels that bring its halo.

Legend: n owned rows, h halo rows, e arcs into owned rows, D features.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fullgraph.exchange import Channel, Clock, Held, RowFacts, Sides, Wire, Wires
from fullgraph.nn.layer_plan import Known, LayerPlan, LayerShape
from fullgraph.ops import spmm
from fullgraph.ops.hashing import pair_ids
from fullgraph.own_model.rows.spaces import Ends, Rows, Sets, Space, mark
from fullgraph.placement import Rules
from fullgraph.placement.channel_view import ChannelView
from fullgraph.placement.holding.adjacency import Matrices, build
from fullgraph.placement.holding.local import LocalGraph
from fullgraph.transport import Transport

EXACT = Wire()
T = TypeVar("T")


class RankGraph:
    """A local graph with what crosses to its neighbours; a trainer takes it for the view of its rows."""

    def __init__(
        self, local: LocalGraph, transport: Transport, clock: Clock, wires: Wires, *, name: str, num_nodes: int,
        rules: Rules = Rules(), like: "RankGraph | None" = None, edge_index: Tensor | None = None,
    ) -> None:  # fmt: skip
        """like: another one of the same rows, with which all that never changes is shared."""
        self.local, self.transport, self.clock, self.wires = local, transport, clock, wires
        self.name, self.num_nodes, self.rules = name, num_nodes, rules
        self.channels = ChannelView(ids=local.ids, num_nodes=num_nodes, transport=transport, clock=clock)
        self._fixed: dict[str, Any] = {} if like is None else like._fixed
        if edge_index is not None:
            self._fixed["edge_index"] = edge_index

    @property
    def ids(self) -> Tensor:
        return self.local.ids

    @property
    def num_owned(self) -> int:
        return len(self.local.ids)

    @property
    def step(self) -> int:
        return self.clock.step

    @property
    def all_ids(self) -> Tensor:
        """Global ids [n+h] of owned, then halo rows."""
        return self._once("all_ids", self._all_ids)

    def _all_ids(self) -> Tensor:
        return torch.cat([self.local.ids, self.local.halo_ids])

    @property
    def edge_index(self) -> Tensor:
        """Arcs [2, e]: sources among owned and halo rows, targets among owned rows."""
        return self._once("edge_index", self._edge_index)

    def _edge_index(self) -> Tensor:
        return torch.stack([self.local.arcs.indices.long(), self.local.arcs.targets()])

    @property
    def nodes(self) -> Space:
        """The owned nodes, a part of all nodes."""
        return self._once("nodes", self._nodes)

    def _nodes(self) -> Space:
        ids = self.local.ids
        return Space(
            "nodes", len(ids), ids=lambda: ids, targets=lambda: torch.arange(len(ids), device=ids.device),
            edge_ids=lambda: pair_ids(ids, ~ids), total=self.num_nodes, whole=True,
        )  # fmt: skip

    @property
    def edges(self) -> Space:
        """The edges into owned nodes, a part of all edges."""
        return self._once("edges", self._edges)

    def _edges(self) -> Space:
        return Space(
            "edges", self.edge_index.shape[1], ids=lambda: self.arc_ids, targets=lambda: self.edge_index[1],
            edge_ids=lambda: self.arc_ids, whole=True,
        )  # fmt: skip

    @property
    def sets(self) -> Sets:
        """The sets of rows that the model has made of this graph."""
        return self._once("sets", lambda: Sets(self.nodes, self.edges))

    @property
    def marked_edge_index(self) -> Tensor:
        """The edge_index that a model is given; other tensors must not be taken for it."""
        rows = Rows(self.edges, 1, points=Ends.BOTH)
        return self._once("marked edge_index", lambda: mark(self.edge_index.detach(), rows))

    @property
    def arc_ids(self) -> Tensor:
        """Which arc of the whole graph each one is: its target, and its place among the arcs into it."""
        return self._once("arc_ids", self._arc_ids)

    def _arc_ids(self) -> Tensor:
        target, indptr = self.edge_index[1], self.local.arcs.indptr
        place = torch.arange(len(target), device=target.device) - indptr[target]
        return pair_ids(self.local.ids[target], place)

    @property
    def x(self) -> Tensor:
        """Features [n, D]."""
        assert isinstance(self.local.x, Tensor)
        return self.local.x

    @property
    def known_sources(self) -> Tensor:
        """Features [n+h, D] of owned and halo rows: they never change, so they cross once."""
        return self._once("known sources", self._fetch_inputs)

    def _fetch_inputs(self) -> Tensor:
        return torch.cat([self.x, self.local.halo_of(self.x, self.transport, f"setup/{self.name} inputs")])

    def _once(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._fixed:
            self._fixed[name] = make()
        value: T = self._fixed[name]
        return value

    def channel(self, name: str, layer: int, *, exact: bool) -> Channel:
        """The channel of that name; `layer` tells which wire it is."""
        return self.channels.channel(name, lambda: self._build(name, EXACT if exact else self.wires.at(layer)))

    def _build(self, name: str, wire: Any) -> Channel:
        channel: Channel = wire.build(
            name=f"{self.name}/{name}",
            route=self.local.route,
            transport=self.transport,
            clock=self.clock,
            facts=RowFacts(
                ids=Sides(self.local.ids, self.local.halo_ids),
                grades=self._once("grades", self._graded) if wire.graded else None,
                summed=None,
            ),
        )
        return channel

    def _graded(self) -> Sides:
        name = f"setup/{self.name} own-model grades"
        owned = self.local.grades(self.transport, f"{name} of owned rows")
        return Sides(owned, self.local.halo_of(owned, self.transport, name))

    def matrices(self, aggregation: str, *, weighted: bool) -> Matrices:
        """The matrix of an aggregation over these rows, normalised with global degrees."""
        arcs = self.local.arcs if weighted else replace(self.local.arcs, weight=None)
        name = f"{aggregation}{' weighted' if weighted else ''}"

        def halo_of(values: Tensor) -> Tensor:
            return self.local.halo_of(values, self.transport, f"setup/{self.name} {name} degrees")

        return self._once(name, lambda: build(arcs, aggregation, halo_of, self.x.dtype))

    def known(self, aggregation: str, *, weighted: bool) -> Tensor:
        """The aggregation of the input features, which never change."""

        def product() -> Tensor:
            matrices = self.matrices(aggregation, weighted=weighted)
            with torch.no_grad():
                inner = spmm(matrices.inner, self.x)
                return spmm(matrices.outer, self.known_sources[self.num_owned :], inner)

        return self._once(f"inputs {aggregation} {weighted}", product)

    def plan(self, x: Tensor, layer: int, shape: LayerShape) -> LayerPlan:
        """What a layer of our kernels sends of x; what it reads of the features is fetched once."""
        known: Known = "" if x is not self.x else "halo" if shape.attends else "aggregate"
        return self.rules.plan(layer, shape, known=known, sparse=False, rows=self.num_nodes)

    def held(self) -> Held:
        return self.channels.held()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.channels.load_state(state)
