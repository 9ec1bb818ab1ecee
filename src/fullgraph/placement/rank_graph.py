"""One rank's graph: its rows of every node type, and the edges into them.

Legend: n owned rows, h halo rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.ops.transpose import indptr_of
from fullgraph.partition import Part
from fullgraph.placement.halo import halo_of, narrowed
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build, fine
from fullgraph.plan import HaloRoute
from fullgraph.resources import require_memory
from fullgraph.transport import Transport

SPLITS = ("train", "val", "test")
HOST = torch.device("cpu")
Relation = tuple[str, str, str]  # source type, name, target type
NODE, EDGE = "node", ("node", "edge", "node")  # in a graph with one node type


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeRows:
    """The rows of one node type: those that this rank owns, and the halo that its edges read."""

    ids: Tensor  # [n]
    halo_ids: Tensor  # [h]
    route: HaloRoute  # to the halo
    x: Features
    y: Tensor
    masks: dict[str, Tensor] = field(default_factory=dict)  # by split
    position: Tensor | None = None  # [n], the best order of rows
    fields: Mapping[str, Tensor] = field(default_factory=dict)  # [n, ...] by name; of a typed graph, NODE_TYPE

    def to(self, device: torch.device, x: Features) -> "NodeRows":
        """The same rows on a device, with x as input rows."""
        return replace(
            self,
            ids=self.ids.to(device),
            halo_ids=self.halo_ids.to(device),
            route=self.route.to(device),
            x=x,
            y=self.y.to(device),
            masks={name: mask.to(device) for name, mask in self.masks.items()},
            fields={name: values.to(device) for name, values in self.fields.items()},
        )

    def picked(self, rows: Tensor) -> dict[str, Any]:
        """The values of some rows, in their order, by field; the halo and the route follow from the edges."""
        return {
            "ids": self.ids[rows],
            "x": pick(self.x, rows),
            "y": self.y[rows],
            "masks": {name: mask[rows] for name, mask in self.masks.items()},
            "position": None if self.position is None else self.position[rows.cpu()],
            "fields": {name: values[rows.to(values.device)] for name, values in self.fields.items()},
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class RankGraph:
    """Rows by node type, and edges by relation; edges end in owned rows of the target type.

    The columns of a relation's edges are owned and halo rows of its source type.
    """

    nodes: Mapping[str, NodeRows]
    edges: Mapping[Relation, Arcs]

    @classmethod
    def of(cls, rows: NodeRows, arcs: Arcs) -> "RankGraph":
        """A graph with one node type and one relation."""
        return cls(nodes={NODE: rows}, edges={EDGE: arcs})

    @classmethod
    def of_part(cls, part: Part, dtype: torch.dtype) -> "RankGraph":
        """The graph of a part, on the host."""
        x: Features
        if isinstance(part.x, Tensor):
            x = part.x.to(dtype)
        else:
            x = Adjacency(
                Structure(part.x.indptr, part.x.indices, part.x.num_cols), part.x.values.to(fine(dtype)), None, None
            )
        rows = NodeRows(
            ids=part.ids,
            halo_ids=part.halo_ids,
            route=HaloRoute(part.send_rows, part.send_counts, part.recv_counts, len(part.ids)),
            x=x,
            y=part.y.to(fine(dtype)) if part.y.is_floating_point() else part.y,
            masks={"train": part.train_mask, "val": part.val_mask, "test": part.test_mask},
            position=part.position,
            fields=part.node_fields,
        )
        arcs = Arcs(
            part.indptr, part.indices, part.weight, len(part.halo_ids), part.undirected, part.attr, part.edge_fields
        )
        return cls.of(rows, arcs)

    @property
    def rows(self) -> NodeRows:
        """The rows of a graph with one node type."""
        (rows,) = self.nodes.values()
        return rows

    @property
    def arcs(self) -> Arcs:
        """The edges of a graph with one relation."""
        (arcs,) = self.edges.values()
        return arcs

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges [2, e] of a graph with one relation: sources among owned and halo rows, targets among owned rows."""
        return torch.stack([self.arcs.indices.long(), self.arcs.targets()])

    def matrices(self, aggregation: str, transport: Transport, dtype: torch.dtype, name: str) -> Matrices:
        """The matrices of an aggregation: owned rows, owned and halo columns."""
        route = self.rows.route
        return build(self.arcs, aggregation, lambda x: halo_of(route, x, transport, f"setup/{name} degrees"), dtype)

    def with_rows(self, **changed: Any) -> "RankGraph":
        """The same graph of one node type with other fields of its rows."""
        return RankGraph.of(replace(self.rows, **changed), self.arcs)

    def with_arcs(self, arcs: Arcs) -> "RankGraph":
        """The same rows with other edges."""
        return RankGraph.of(self.rows, arcs)

    def with_dense_rows(self) -> "RankGraph":
        """The same graph with dense input rows."""
        x = self.rows.x
        if isinstance(x, Tensor):
            return self
        s, values = x.structure, x.weight
        assert values is not None
        require_memory(s.num_rows * s.num_cols * values.element_size(), "making sparse input rows dense")
        dense = torch.zeros(s.shape, dtype=values.dtype, device=values.device)
        return self.with_rows(x=dense.index_put_((s.rows.long(), s.indices.long()), values, accumulate=True))

    def to(self, device: torch.device, *, arcs: bool = False, host_rows: bool = False) -> "RankGraph":
        """Rows, labels and route on a device; with `arcs`, the edges too.

        host_rows: dense input rows stay on the host, in pinned memory.
        """
        if device.type == "cpu":
            return self
        rows, x = self.rows, self.rows.x
        if isinstance(x, Tensor):
            x = x.pin_memory() if host_rows else x.to(device)
        else:
            x = x.to(device=device)
        return RankGraph.of(rows.to(device, x), self.arcs.to(device) if arcs else self.arcs)

    def on_host(self) -> "RankGraph":
        """The same graph on the host; input rows stay where they are."""
        if self.arcs.device == HOST and self.rows.ids.device == HOST:
            return self
        return RankGraph.of(self.rows.to(HOST, self.rows.x), self.arcs.to(HOST))

    def for_pyg(self, device: torch.device, *, typed: bool = False) -> "RankGraph":
        """The same graph for a model written for PyG: on its device, with dense features and weights of their type.

        typed: features stay as they are, and rows are sorted by id, which means by type.
        """
        graph = (self.by_id() if typed else self.with_dense_rows()).to(device, arcs=True)
        x, arcs = graph.rows.x, graph.arcs
        values = x if isinstance(x, Tensor) else x.weight
        assert values is not None
        x, kind = x.to(device=device), fine(values.dtype)
        weight = None if arcs.weight is None else arcs.weight.to(kind)
        attr = None if arcs.attr is None else arcs.attr.to(kind)
        of_nodes, of_arcs = (_as_numbers(held, device, kind, typed) for held in (graph.rows.fields, arcs.fields))
        return graph.with_rows(x=x, fields=of_nodes).with_arcs(replace(arcs, weight=weight, attr=attr, fields=of_arcs))

    def by_id(self) -> "RankGraph":
        """The same rows, sorted by id."""
        ids = self.rows.ids
        return self if bool((ids.diff() > 0).all()) else self.reordered(torch.argsort(ids))

    def ordered(self) -> "RankGraph":
        """The same rows, sorted by position."""
        position = self.rows.position
        if position is None or bool((position.diff() > 0).all()):
            return self
        return self.reordered(torch.argsort(position))

    def reordered(self, order_n: Tensor) -> "RankGraph":
        """The same rows in another order."""
        rows = self.rows
        number_n = torch.empty_like(order_n)
        number_n[order_n] = torch.arange(len(order_n), device=order_n.device)
        route = replace(rows.route, send_rows=number_n[rows.route.send_rows])
        return RankGraph.of(replace(rows, route=route, **rows.picked(order_n)), self.arcs.reordered(order_n))

    def isolated(self) -> "RankGraph":
        """The same rows without the edges from other parts, and therefore without a halo."""
        rows = self.rows
        inner = self.arcs.keep(self.arcs.indices < len(rows.ids))
        none = (0,) * len(rows.route.send_counts)
        route = HaloRoute(rows.route.send_rows[:0], none, none, len(rows.ids))
        arcs = Arcs(inner.indptr, inner.indices, inner.weight, 0, attr=inner.attr, fields=inner.fields)
        return RankGraph.of(replace(rows, halo_ids=rows.halo_ids[:0], route=route), arcs)

    def induced(self, transport: Transport) -> "RankGraph":
        """The subgraph of training nodes, as this rank sees it."""
        rows = self.rows
        keep_n = rows.masks["train"]
        keep_h = halo_of(rows.route, keep_n[:, None].to(torch.uint8), transport, "setup/training halo")[:, 0].bool()
        keep = torch.cat([keep_n, keep_h])
        arcs = self.arcs.keep(keep[self.arcs.indices.long()] & keep_n[self.arcs.targets()])
        return self.within(keep_n, arcs, transport, "setup/wanted halo")

    def within(self, keep_n: Tensor, arcs: Arcs, transport: Transport, name: str) -> "RankGraph":
        """Some of the rows, under some of the edges between them.

        A halo row stays only where an edge reads it; its owner is told, so that it does not send the rest.
        """
        rows = self.rows
        read_h = torch.zeros(len(rows.halo_ids), dtype=torch.bool, device=keep_n.device)
        read_h[arcs.indices[arcs.indices >= len(keep_n)].long() - len(keep_n)] = True
        route = narrowed(rows.route, keep_n, read_h, transport, name)
        number = torch.cumsum(torch.cat([keep_n, read_h]), 0, dtype=torch.int32) - 1
        indptr = indptr_of(arcs.indptr.diff()[keep_n])
        kept = replace(arcs, indptr=indptr, indices=number[arcs.indices.long()], num_halo=int(read_h.sum()))
        picked = rows.picked(keep_n.nonzero()[:, 0])
        return RankGraph.of(NodeRows(halo_ids=rows.halo_ids[read_h], route=route, **picked), kept)


def _as_numbers(held: Mapping[str, Tensor], device: torch.device, kind: torch.dtype, typed: bool) -> dict[str, Tensor]:
    """Fields on a device; real numbers in the type of the features, numbers of types and relations in 64 bits."""
    types = {name: torch.int64 if typed else x.dtype for name, x in held.items()}
    return {name: x.to(device, kind if x.is_floating_point() else types[name]) for name, x in held.items()}


def pick(x: Features, rows: Tensor) -> Features:
    """Some rows of x, in their order."""
    return x[rows.to(x.device)] if isinstance(x, Tensor) else x.take(rows)
