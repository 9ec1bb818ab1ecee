"""A small piece of a rank's graph, cut into parts, on which the self-check runs a model.

Legend: n owned rows, e arcs; m rows and a arcs of the piece.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fullgraph.data import Graph
from fullgraph.own_model.inputs import edge_names, node_names
from fullgraph.own_model.pyg_view import PygView
from fullgraph.partition import Assignment
from fullgraph.train.spread import Held

ROWS, RING, RANKS = 60, 12, 3
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows and the arcs between them, cut into parts; `edge_attr` holds the arcs' numbers."""

    graph: Graph
    part: Assignment
    rows_m: Tensor  # owned rows of the real graph
    arcs_a: Tensor  # its arcs
    sizes: tuple[int, int]  # n and e
    total: int  # nodes of the whole graph
    nodes: frozenset[str] = frozenset()  # names of inputs that have a row per node, even if n = e
    edges: frozenset[str] = frozenset()
    ids: Tensor | None = None  # global ids of the owned nodes
    numbers: Tensor | None = None  # the same, if the model has tables; an input equal to these gets the piece's ids

    def cut(self, value: Any, name: str, nodes: Tensor, arcs: Tensor) -> Any:
        """A model input for some nodes and arcs of the piece, in float64."""
        if not isinstance(value, Tensor):
            return value
        value = value.detach().cpu()
        if self.numbers is not None and value.shape == self.numbers.shape and torch.equal(value, self.numbers):
            return nodes
        n, e = self.sizes
        if (
            value.dim()
            and len(value) == e
            and name not in self.nodes
            and (e != n or "edge" in name or name in self.edges)
        ):
            value = value[self.arcs_a[arcs]]
        elif value.dim() and len(value) == n:
            value = value[self.rows_m[nodes]]
        return value.double() if value.is_floating_point() else value

    def edge_index(self) -> Any:
        return torch.from_numpy(self.graph.edge_index.astype(np.int64))

    def targets(self, nodes: Tensor) -> Tensor:
        """Those of some nodes for which the model returns logits."""
        return nodes

    @property
    def target(self) -> str:
        """Their type."""
        return ""

    def counts(self) -> dict[str, Any]:
        """Numbers of nodes, by the names of a forward's arguments for them."""
        return {"num_nodes": self.graph.num_nodes}

    def opened(self, **given: Any) -> PygView:
        """A rank's view of its part of the piece."""
        return PygView(**given)

    def held(self, kind: str, nodes: Tensor) -> Held:
        """The rows of a table of the piece that a rank with these nodes holds."""
        return Held(nodes, self.graph.num_nodes)

    def real(self, kind: str) -> Held:
        """The rows of a table of the whole graph that the piece has."""
        assert self.ids is not None
        return Held(self.ids[self.rows_m], self.total)

    def inputs(self, inputs: Inputs, nodes: Tensor, arcs: Tensor) -> Inputs:
        """The model's arguments beside x and edge_index."""
        args, kwargs = inputs
        named = {name: self.cut(value, name, nodes, arcs) for name, value in kwargs.items()}
        return tuple(self.cut(value, "edge", nodes, arcs) for value in args), named


def piece_of(view: PygView, first: Tensor | None = None, most: int = ROWS) -> Piece:
    """Rows around the first ones and the arcs between them; if there are too few, a ring of some rows.

    first: other rows to begin with, in place of the first ones; there is no ring then.
    """
    source, target = view.edge_index.cpu()
    n, e = view.num_owned, len(source)
    inner = (source < n).nonzero().flatten()
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[: ROWS // 6 if first is None else 0] = True
    chosen[slice(0, 0) if first is None else first] = True
    for _ in range(8):
        reached = torch.cat([source[inner][chosen[target[inner]]], target[inner][chosen[source[inner]]]]).unique()
        chosen[reached[~chosen[reached]][: max(0, most - int(chosen.sum()))]] = True
    rows_m, number = chosen.nonzero().flatten(), torch.cumsum(chosen, 0) - 1
    arcs_a = inner[chosen[source[inner]] & chosen[target[inner]]]
    ends = torch.stack([number[source[arcs_a]], number[target[arcs_a]]])
    if ends.shape[1] < RING and first is None:
        ring = torch.arange(RING)
        rows_m, arcs_a = ring % n, ring % max(1, e)
        ends = torch.stack([ring, (ring + 1) % RING])
    m = len(rows_m)
    masks = tuple(np.arange(m) % 3 == split for split in range(3))
    numbers = np.arange(len(arcs_a), dtype=np.float64)
    small = Graph(ends.numpy(), np.zeros((m, 1)), np.zeros(m, dtype=np.int64), masks, edge_attr=numbers)
    part = np.random.default_rng(0).integers(0, RANKS, m).astype(np.int32)
    cut = Assignment(part, RANKS, "random", 0)
    return Piece(small, cut, rows_m, arcs_a, (n, e), view.num_nodes, node_names(view), edge_names(view), view.ids.cpu())
