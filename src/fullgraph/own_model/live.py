"""Live rows of a user's model: a layer on our kernels computes only the rows that the loss reads.

A forward pass reads rows of neighbours `total` times, one reading after another. What is computed after reading r can
cross at most total - 1 - r further edges. The loss therefore reads only those of its rows that are at most as many
hops from a training node. This is true whatever the model does between readings, except for a sum over nodes (also a
norm, a count or an extreme) and for messages against the edges, which may read all rows of everything before them.

All other rows of a layer's output are copies of a row that is computed: nothing in training reads them, and like all
computed rows they are finite.

Legend: n owned rows, h halo rows; of a part r rows, of which it computes t, and a edges.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Sides
from fullgraph.ops import Adjacency
from fullgraph.own_model.pyg_view import EXACT, PygView, kept
from fullgraph.own_model.rows.spaces import Ends, Rows, mark, rows_of
from fullgraph.placement.halo import asked_of_owners
from fullgraph.placement.holding.adjacency import Arcs, Matrices, build
from fullgraph.placement.holding.live import WORTH, live_rows

PLAIN = (bool, int, float, str, type(None))

if TYPE_CHECKING:
    from fullgraph.own_model.forward import Counts, Forward


@dataclass(frozen=True, slots=True)
class Readings:
    """How often a training pass reads rows of neighbours: in total, and before its last sum over nodes."""

    total: int = 0
    before_sum: int = 0

    def also(self, counts: "Counts") -> "Readings":
        return Readings(max(self.total, counts.reads), max(self.before_sum, counts.before_sum))

    @property
    def hops(self) -> tuple[int | None, ...]:
        """By reading: how far from a training node its results are read; None: everywhere."""
        return tuple(None if r < self.before_sum else self.total - 1 - r for r in range(self.total))


class LiveRows:
    """The part of a rank's graph that each reading of a training pass needs; None: all of it."""

    def __init__(self, readings: Readings, parts: list["LiveView | None"]) -> None:
        self.readings, self.parts = readings, parts

    @classmethod
    def of(cls, view: PygView, readings: Readings, worth: float = WORTH) -> "LiveRows | None":
        """worth: a reading needs all rows if it would still read more than this share of the edges."""
        if all(hop is None for hop in readings.hops):
            return None
        near_n = view.graph.rows.masks["train"].clone()
        if not near_n.any():
            near_n[:1] = True  # so that every rank computes a row, which the other rows can copy
        live = live_rows(view.graph.with_rows(masks={"train": near_n}), readings.hops, view.transport, worth)
        if live is None:
            return None
        parts = {
            hop: LiveView.within(view, live.level_n <= hop, f"setup/live part {hop}")
            for hop in sorted({hop for hop in live.hops if hop is not None})
        }
        return cls(readings, [None if hop is None else parts[hop] for hop in live.hops])

    def part(self, reading: int) -> "LiveView | None":
        return self.parts[reading] if reading < len(self.parts) else None

    def check(self, counts: "Counts") -> None:
        """Refuse a pass whose loss may read rows that were not computed."""
        if self.readings.also(counts) != self.readings:
            raise InputError(
                "the model reads neighbours or sums over nodes more often than in the self-check, so rows may be "
                "missing that the loss reads; compute all rows (--all-rows)"
            )


@dataclass(eq=False, kw_only=True)
class LiveView(PygView):
    """The rows and edges that a layer reads, if only some of its rows are read."""

    whole: PygView
    rows_r: Tensor  # positions among the owned rows of the whole view
    halo_h: Tensor  # likewise among its halo rows
    computed_t: Tensor  # likewise: rows that are computed, with all their edges
    place_t: Tensor  # their positions among the r rows
    copied_n: Tensor  # by row of the whole view: the row of the r that it is, or is a copy of
    edges_a: Tensor  # positions among the whole view's edges

    @classmethod
    def within(cls, whole: PygView, live_n: Tensor, name: str) -> "LiveView":
        """The part that computes the rows `live_n`."""
        graph, transport, n = whole.graph, whole.transport, whole.num_owned
        rows, read = graph.rows, graph.arcs.sources_of(live_n)
        keep_n = live_n | read[:n]
        asked = asked_of_owners(rows.route, read[n:], transport, f"{name} asked")
        for peer, sent in rows.route.send_slices().items():
            keep_n[sent[asked[peer]]] = True
        into_e = live_n[whole.edge_index[1]]
        bare = graph.with_rows(x=whole.features.new_empty(n, 0), fields={})
        part = bare.within(keep_n, graph.arcs.keep(into_e), transport, name)
        computed_t = live_n.nonzero()[:, 0]
        number_n = torch.cumsum(keep_n, 0) - 1
        place_t = number_n[computed_t]
        copied_n = torch.where(live_n, number_n, place_t[:1]) if n else number_n
        view = cls(
            graph=part, transport=transport, num_nodes=whole.num_nodes, counts=whole.counts, name=whole.name,
            wires=whole.wires, clock=whole.clock, rules=whole.rules, whole=whole, rows_r=keep_n.nonzero()[:, 0],
            halo_h=read[n:].nonzero()[:, 0], computed_t=computed_t, place_t=place_t, copied_n=copied_n,
            edges_a=into_e.nonzero()[:, 0],
        )  # fmt: skip
        view._channels, view._loaded = whole._channels, whole._loaded  # a checkpoint holds them under their names
        return view

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
        return torch.cat([self.features, halo.index_select(0, self.halo_h)])

    @kept
    def _grades(self) -> Sides:
        grades = self.whole._grades
        return Sides(grades.owned[self.rows_r], grades.halo[self.halo_h])

    def known_aggregate(self, aggregation: str, *, weighted: bool) -> Tensor:
        def rows() -> Tensor:
            return self.whole.known_aggregate(aggregation, weighted=weighted).index_select(0, self.rows_r)

        return self.once(f"inputs {aggregation} {weighted}", rows)

    def _matrices(self, arcs: Arcs, aggregation: str, name: str) -> Matrices:
        """Normalised with the degrees of the whole graph: the part lacks edges into rows that it only reads."""
        halo = len(self.halo_h)
        built = build(arcs, aggregation, lambda x: x.new_zeros(halo, *x.shape[1:]), self.features.dtype)
        if aggregation != "gcn":
            return built
        whole = self.whole.matrices(aggregation, weighted=arcs.weight is not None)
        inner = _scaled_as(whole.inner, built.inner, self.rows_r, self.rows_r)
        return replace(built, inner=inner, outer=_scaled_as(whole.outer, built.outer, self.rows_r, self.halo_h))

    # A layer's arguments, and its output

    def given(self, value: Any) -> Any:
        """A layer's argument for this part; NotImplemented if it is not known which of its rows to take."""
        whole, rows = self.whole, rows_of(value)
        if not isinstance(value, Tensor):
            return NotImplemented if isinstance(value, tuple | list | dict) else value
        if value is whole.features:
            x = self.once("features", lambda: whole.features.index_select(0, self.rows_r))
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
        of_nodes = rows.space is whole.nodes
        picked = value.index_select(0, self.rows_r if of_nodes else self.edges_a)
        return mark(picked, Rows(self.nodes if of_nodes else self.edges, 0))

    def spread(self, out_rD: Tensor) -> Tensor:
        """A layer's output for the rows of the whole view; beside the computed rows, copies of one."""
        out: Tensor = Spread.apply(out_rD, self.copied_n, self.computed_t, self.place_t)  # type: ignore[no-untyped-call]
        return out


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


def on_live_rows(forward: "Forward", layer: Callable[..., Tensor | None], args: Any, kwargs: Any) -> Tensor | None:
    """A layer on our kernels, over the rows that are read later; None if it cannot run there."""
    counts = forward.counts
    reading, part = counts.reads, None if forward.live is None else forward.live.part(counts.reads)
    with torch._C.DisableTorchFunction():
        given = () if part is None else [part.given(value) for value in (*args, *kwargs.values())]
    if part is None or any(value is NotImplemented for value in given):
        out = layer(*args, **kwargs)
    else:
        with forward.over(part):
            out = layer(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
        if out is not None:
            with torch._C.DisableTorchFunction():
                out = forward.as_nodes(part.spread(out))
    if out is not None:
        counts.reads = reading + 1
    return out


def kept_rows(module: nn.Module) -> str:
    """The name of an attribute or buffer in which a model keeps rows for later steps; empty if there is none."""
    for name, part in module.named_modules():
        for key, value in (vars(part) | part._buffers | {"_buffers": None, "_parameters": None}).items():
            many = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            if any(rows_of(one) is not None for one in many):
                return f"{name}.{key}".lstrip(".")
    return ""


def counters(module: nn.Module) -> dict[str, Any]:
    """A model's plain attributes, and the versions of its buffers: a later pass may depend on what changes there."""
    found: dict[str, Any] = {}
    for name, part in module.named_modules():
        plain = {key: x for key, x in vars(part).items() if isinstance(x, PLAIN) and key != "training"}
        if not isinstance(part, nn.modules.batchnorm._BatchNorm):
            plain |= {key: (id(x), x._version) for key, x in part._buffers.items() if x is not None}
        found |= {f"{name}.{key}".lstrip("."): x for key, x in plain.items()}
    return found


def first_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    return next((name for name, value in after.items() if before.get(name) != value), "")


def _scaled_as(whole: Adjacency, part: Adjacency, rows: Tensor, columns: Tensor) -> Adjacency:
    """The part's matrix with the whole one's scales of its rows and columns."""
    assert whole.row_scale is not None
    assert whole.col_scale is not None
    return replace(part, row_scale=whole.row_scale[rows], col_scale=whole.col_scale[columns])
