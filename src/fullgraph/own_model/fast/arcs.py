"""A layer's arguments about the graph's arcs: the graph's weights or features, and self loops.

Legend as in __init__.py; K features of an arc.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.cached import cached_property
from fullgraph.nn.layer_plan import LayerShape
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.ops.hashing import pair_ids
from fullgraph.own_model.forward import Forward
from fullgraph.own_model.rows.spaces import Ends as Points
from fullgraph.own_model.rows.spaces import Rows, Space, mark, rows_of


@dataclass(frozen=True)
class Ends:
    """The rows of a layer's sources and of its targets."""

    source: Tensor
    target: Tensor

    @property
    def same(self) -> bool:
        return self.source is self.target


def own_ends(forward: Forward, x: Any, edge_index: Any) -> Ends | None:
    """The rows that a layer is given, if it is called with rows of nodes and with the graph's own arcs.

    x: rows of both ends, or a pair of rows.
    """
    if not is_over(forward, edge_index):
        return None
    pair = x if isinstance(x, tuple) and len(x) == 2 else (x, x)
    if not all(isinstance(rows, Tensor) for rows in pair):
        return None
    views = forward.view.sources, forward.view.targets
    with torch._C.DisableTorchFunction():
        for rows, view in zip(pair, views, strict=True):
            forward.guard.meet_maker(rows)
            if rows.dim() != 2 or rows.dtype != view.features.dtype or not forward.is_owned(rows, 0, view):
                return None
    return Ends(*pair)


def is_over(forward: Forward, edge_index: Any) -> bool:
    """Whether a layer is called with the graph's own arcs."""
    arcs = rows_of(edge_index)
    return arcs is not None and arcs.space is forward.view.edges and arcs.points is Points.BOTH


def adds(conv: Any) -> bool:
    """Whether a layer sums its messages; PyG has two names for it."""
    return isinstance(conv.aggr, str) and conv.aggr in ("add", "sum")


def weighted(forward: Forward, edge_weight: Any) -> bool | None:
    """Whether the call uses the graph's weights; None if it has weights of its own."""
    if edge_weight is None:
        return False
    return True if edge_weight is forward.view.graph.arcs.weight else None


def mapped(forward: Forward, x_nI: Tensor, weight_OI: Tensor, aggregation: str, by_weight: bool) -> Tensor:
    """A X W^T; the dense map comes first if that sends less."""
    out_width, in_width = weight_OI.shape
    if forward.plan(x_nI, LayerShape(in_width, out_width)).maps_first:
        return forward.aggregate(F.linear(x_nI, weight_OI), aggregation, weighted=by_weight)
    return F.linear(forward.aggregate(x_nI, aggregation, weighted=by_weight), weight_OI)


def mapped_sources(forward: Forward, x: Tensor, lin: Any, width: int) -> Tensor:
    """lin(x) of owned, then halo rows; the narrower of input and output crosses, or the input if it is the graph's."""
    if forward.plan(x, LayerShape(x.shape[1], width, attends=True)).sends == "mapped":
        return forward.sources(lin(x))
    mapped: Tensor = lin(forward.sources(x))
    return mapped


def is_of_arcs(forward: Forward, values: Any, edge_index: Any) -> bool:
    """Whether a tensor has one row per arc of the graph."""
    rows, arcs = rows_of(values), rows_of(edge_index)
    if not isinstance(values, Tensor) or rows is None or arcs is None or rows.dim or rows.blocks > 1 or rows.each != 1:
        return False
    forward.guard.meet_maker(values)
    return values.dim() in (1, 2) and values.dtype == forward.view.features.dtype and rows.space is arcs.space


def columns(edge_attr: Tensor) -> Tensor:
    """Features of arcs as [E, K]."""
    return edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr


def has_room(forward: Forward, values_of_arc: int) -> bool:
    """Whether every rank has memory for that many numbers per arc, and for their gradients."""

    def agreed() -> bool:
        view, room = forward.view, forward.room
        nbytes = 2 * values_of_arc * view.pattern.num_arcs * view.features.element_size()
        short = room is not None and nbytes > room()
        return not int(view.reduce(torch.tensor([int(short)])))

    with forward.trust():
        return forward.view.once(f"room for {values_of_arc}", agreed)


class Looped:
    """The pattern of A + I over the graph's arcs, with the arc of each entry."""

    def __init__(self, forward: Forward) -> None:
        self._view = forward.view
        self.pattern: Structure = forward.view.matrices("attention", weighted=False).arcs

    @cached_property
    def _targets(self) -> Tensor:
        return self.pattern.rows

    @cached_property
    def _is_loop(self) -> Tensor:
        return self.pattern.indices == self._targets

    @cached_property
    def _rest(self) -> Tensor:
        """The arcs that are not self loops."""
        return (self._view.graph.arcs.indices != self._view.edge_index[1]).nonzero()[:, 0]

    @cached_property
    def space(self) -> Space:
        """The arcs in the ids that dropout uses, which equal those after PyG's remove_self_loops and add_self_loops."""
        ids = torch.empty(self.pattern.num_arcs, dtype=torch.int64, device=self._rest.device)
        owned = self._view.ids
        ids[~self._is_loop], ids[self._is_loop] = self._view.arc_ids[self._rest], pair_ids(owned, ~owned)
        return Space("edges", len(ids), ids=lambda: ids, targets=lambda: self._targets, edge_ids=lambda: ids)

    def features(self, attr_EK: Tensor) -> Tensor:
        """Features of the entries: a self loop has the mean of the other arcs into its node."""
        rest_EK = attr_EK[self._rest]
        indptr = self.pattern.indptr - torch.arange(len(self.pattern.indptr), device=self._rest.device)
        each = torch.arange(len(rest_EK), dtype=torch.int32, device=self._rest.device)
        share_n = 1 / indptr.diff().clamp(min=1).to(attr_EK.dtype)
        loops_nK = spmm(Adjacency(Structure(indptr, each, len(each)), row_scale=share_n), rest_EK)
        place_E = torch.where(self._is_loop, len(each) + self._targets, torch.cumsum(~self._is_loop, 0) - 1)
        return torch.cat([rest_EK, loops_nK])[place_E]


def looped(forward: Forward) -> Looped:
    return forward.view.once("looped", lambda: Looped(forward))


def kept(forward: Forward, pattern: Structure, space: Space, heads: int, p: float, like: Tensor) -> Tensor:
    """Dropout factors of attention weights [E, H], drawn by the arcs' ids."""
    ones = like.new_ones(pattern.num_arcs, heads)
    return forward.dropout(mark(ones, Rows(space, 0)), p).detach()
