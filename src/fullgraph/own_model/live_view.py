"""The rows and edges that a layer reads, if only some of its rows are read.

Legend: n owned rows, h halo rows, e edges; of a part r rows, of which it computes t, and a edges.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel, Sides
from fullgraph.graph_types import NODE_TYPE
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency
from fullgraph.own_model.pyg_view import EXACT, PygView, kept
from fullgraph.own_model.rows.spaces import Ends, Rows, mark, rows_of
from fullgraph.placement import RankGraph
from fullgraph.placement.halo import asked_of_owners
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build

Keep = Callable[[Tensor, PygView, Callable[[], Tensor]], Tensor]  # (of this tensor, for this part, made by this)


@dataclass(frozen=True, eq=False)
class Picked:
    """The rows of a part, among the owned and halo rows of some nodes."""

    rows_r: Tensor  # positions among the n
    halo_h: Tensor  # positions of its halo rows among theirs
    computed_t: Tensor  # positions among the n of the rows that are computed, with all their edges
    place_t: Tensor  # their positions among the r rows
    copied_n: Tensor  # the row of the r that each of the n is, or is a copy of

    @classmethod
    def of(cls, keep_n: Tensor, read_h: Tensor, live_n: Tensor) -> "Picked":
        """keep_n: the rows of the part. live_n: those that it computes, at least one if there are any rows."""
        computed_t, number_n = live_n.nonzero()[:, 0], torch.cumsum(keep_n, 0) - 1
        place_t = number_n[computed_t]
        copied_n = torch.where(live_n, number_n, place_t[:1]) if len(live_n) else number_n
        return cls(keep_n.nonzero()[:, 0], read_h.nonzero()[:, 0], computed_t, place_t, copied_n)

    def pick(self, x_nD: Tensor) -> Tensor:
        return x_nD.index_select(0, self.rows_r)

    def spread(self, out_rD: Tensor) -> Tensor:
        """Rows of the part for all n: beside the computed rows, copies of one."""
        out: Tensor = Spread.apply(out_rD, self.copied_n, self.computed_t, self.place_t)  # type: ignore[no-untyped-call]
        return out

    def scaled_as(self, whole: Matrices, part: Matrices) -> Matrices:
        """The part's square matrix with the whole one's scales of its rows and columns."""
        inner = _scaled_as(whole.inner, part.inner, self.rows_r, self.rows_r)
        return replace(part, inner=inner, outer=_scaled_as(whole.outer, part.outer, self.rows_r, self.halo_h))


class Spread(torch.autograd.Function):
    """forward: y[i] = x[copied[i]].  backward: the gradients of computed rows; those of copies are zero."""

    @staticmethod
    def forward(ctx, x_rD: Tensor, copied_n: Tensor, computed_t: Tensor, place_t: Tensor):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(computed_t, place_t)
        ctx.rows = len(x_rD)
        return x_rD.index_select(0, copied_n)

    @staticmethod
    def backward(ctx, grad_nD: Tensor):  # type: ignore[no-untyped-def]
        computed_t, place_t = ctx.saved_tensors
        grad_rD = grad_nD.new_zeros(ctx.rows, *grad_nD.shape[1:])
        return grad_rD.index_copy_(0, place_t, grad_nD.index_select(0, computed_t)), None, None, None


def _scaled_as(whole: Adjacency, part: Adjacency, rows: Tensor, columns: Tensor) -> Adjacency:
    assert whole.row_scale is not None
    assert whole.col_scale is not None
    return replace(part, row_scale=whole.row_scale[rows], col_scale=whole.col_scale[columns])


@dataclass(frozen=True, eq=False)
class Needed:
    """What computing some rows needs, as masks over a rank's rows and edges; and the graph of only that, without x."""

    live_n: Tensor  # computed rows
    keep_n: Tensor  # owned rows that are computed or read, here or by peers
    read_h: Tensor  # halo rows
    into_e: Tensor  # edges
    graph: RankGraph

    @classmethod
    def of(cls, whole: PygView, live_n: Tensor, name: str) -> "Needed":
        graph, transport, n = whole.graph, whole.transport, len(live_n)
        rows, read = graph.rows, graph.arcs.sources_of(live_n)
        keep_n = live_n | read[:n]
        asked = asked_of_owners(rows.route, read[n:], transport, f"{name} asked")
        for peer, sent in rows.route.send_slices().items():
            keep_n[sent[asked[peer]]] = True
        into_e = live_n[graph.arcs.targets()]
        types = {NODE_TYPE: rows.fields[NODE_TYPE]} if NODE_TYPE in rows.fields else {}
        bare = graph.with_rows(x=_values(rows.x).new_empty(n, 0), fields=types)
        part = bare.within(keep_n, graph.arcs.keep(into_e), transport, name)
        return cls(live_n, keep_n, read[n:], into_e, part)


def _values(x: Features) -> Tensor:
    values = x if isinstance(x, Tensor) else x.weight
    assert values is not None
    return values


@dataclass(eq=False, kw_only=True)
class LiveView(PygView):
    """The part of a rank's nodes and edges that a layer reads."""

    whole: PygView
    picked: Picked
    edges_a: Tensor  # positions among the whole view's edges

    @classmethod
    def within(cls, whole: PygView, live_n: Tensor, name: str) -> "LiveView":
        """The part that computes the rows `live_n`."""
        need = Needed.of(whole, live_n, name)
        view = cls(
            graph=need.graph, transport=whole.transport, num_nodes=whole.num_nodes, counts=whole.counts,
            name=whole.name, wires=whole.wires, clock=whole.clock, rules=whole.rules, whole=whole,
            picked=Picked.of(need.keep_n, need.read_h, live_n), edges_a=need.into_e.nonzero()[:, 0],
        )  # fmt: skip
        view._channels, view._loaded = whole._channels, whole._loaded  # a checkpoint holds them under their names
        return view

    def part_of(self, view: PygView) -> "LiveView":
        """The part of a view that a layer runs over."""
        return self

    # What the whole view knows

    @property
    def features(self) -> Tensor:
        """Input rows [r, D], once a layer has been given them; no columns before."""
        x: Tensor = self._fixed.get("features", self.graph.rows.x)
        return x

    def crossing(self, name: str, layer: int, *, exact: bool) -> Channel:
        """Messages have the names of the whole view's, by which some wires draw; checkpoints tell both apart."""
        wire = EXACT if exact else self.wires.at(layer)
        return self.channel(f"live {name}", lambda: self._build(name, wire))

    def reduce(self, x: Tensor) -> Tensor:
        return self.whole.reduce(x)

    @kept
    def known_sources(self) -> Tensor:
        halo = self.whole.known_sources[self.whole.num_owned :]
        return torch.cat([self.features, halo.index_select(0, self.picked.halo_h)])

    @kept
    def _grades(self) -> Sides:
        grades = self.whole._grades
        return Sides(grades.owned[self.picked.rows_r], grades.halo[self.picked.halo_h])

    def known_aggregate(self, aggregation: str, *, weighted: bool) -> Tensor:
        def rows() -> Tensor:
            return self.picked.pick(self.whole.known_aggregate(aggregation, weighted=weighted))

        return self.once(f"inputs {aggregation} {weighted}", rows)

    def _matrices(self, arcs: Arcs, aggregation: str, name: str) -> Matrices:
        """Normalised with the degrees of the whole graph: the part lacks edges into rows that it only reads."""
        halo = len(self.picked.halo_h)
        built = build(arcs, aggregation, lambda x: x.new_zeros(halo, *x.shape[1:]), self.features.dtype)
        if aggregation != "gcn":
            return built
        return self.picked.scaled_as(self.whole.matrices(aggregation, weighted=arcs.weight is not None), built)

    # A layer's arguments, and its output

    def given(self, value: Any, keep: Keep) -> Any:
        """A layer's argument for this part; NotImplemented if it is not known which of its rows to take."""
        whole, rows = self.whole, rows_of(value)
        if not isinstance(value, Tensor):
            return NotImplemented if isinstance(value, tuple | list | dict) else value
        if value is whole.features:
            x = self.once("features", lambda: self.picked.pick(whole.features))
            return mark(x, Rows(self.nodes, 0))
        if rows is None or rows.dim or not rows.is_single:
            is_graph = rows is not None and rows.space is whole.edges and rows.points is Ends.BOTH
            return self.marked_edge_index if is_graph else NotImplemented
        arcs, ours = whole.graph.arcs, self.graph.arcs
        if value is arcs.weight or value is arcs.attr:
            known = ours.weight if value is arcs.weight else ours.attr
            assert known is not None
            return mark(known, Rows(self.edges, 0))
        if rows.points is not None or rows.space not in (whole.nodes, whole.edges):
            return NotImplemented
        if rows.space is whole.nodes:
            return mark(keep(value, self, lambda: self.picked.pick(value)), Rows(self.nodes, 0))
        return mark(value.index_select(0, self.edges_a), Rows(self.edges, 0))

    def spread(self, out_rD: Tensor) -> Tensor:
        """A layer's output for the rows of the whole view."""
        return self.picked.spread(out_rD)
