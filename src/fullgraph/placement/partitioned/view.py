"""The view of a partitioned graph: owned rows on this rank, halo rows through a channel.

Legend: n owned rows that a layer reads, t of them that it computes, h halo rows, D features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.exchange import Channel, HostChannel, RowFacts, Sides, Wire
from fullgraph.graph_types import NODE_TYPE
from fullgraph.nn.view import IDENTITY, Features, Mapped, Message, Operand, RowMap, Update
from fullgraph.ops import Groups, RelationArcs, attend, spmm
from fullgraph.placement.halo import boundary_grades, halo_of
from fullgraph.placement.holding.adjacency import column_squares, fine
from fullgraph.placement.holding.by_host import by_host, largest_of_hosts
from fullgraph.placement.holding.cover import covered
from fullgraph.placement.holding.live import LayerRows, Live
from fullgraph.placement.known import KnownHalo, with_first
from fullgraph.placement.view import ChannelView
from fullgraph.plan import Route, WholeRoute


@dataclass(eq=False, kw_only=True)
class PartitionedView(ChannelView):
    """A graph whose rows are distributed over ranks; each layer's halo comes through a channel."""

    whole: LayerRows
    fewer: Mapping[int, LayerRows] = field(default_factory=dict)  # layers that do not compute all rows, by number
    crossed: dict[tuple[int | None, bool], LayerRows] = field(default_factory=dict)  # by (layer as in `fewer`, covers)
    _crossing: dict[int, LayerRows] = field(default_factory=dict, init=False)
    _halos: dict[int, KnownHalo] = field(default_factory=dict, init=False)
    _types: dict[int, Groups] = field(default_factory=dict, init=False)

    def trimmed(self, live: Live | None) -> "PartitionedView":
        if live is None:
            return self
        fewer = live.layers(self.whole, self.transport)
        rows = {layer: of.targets for layer, of in fewer.items()}
        return replace(self, fewer=fewer, live=rows, computed=live.computed)

    def node_types(self, count: int) -> Groups:
        if count not in self._types:
            kinds, rows = self.graph.rows.fields[NODE_TYPE][:count].long().sort(stable=True)
            self._types[count] = Groups.of(kinds, rows)
        return self._types[count]

    def relations(self, layer: int) -> Groups:
        groups = self.rows(layer).matrices.groups
        assert groups is not None, "the matrices of this aggregation are not grouped by relation"
        return groups

    def relation_arcs(self, layer: int) -> RelationArcs:
        return self._crossing.get(layer, self.rows(layer)).matrices.by_relation

    def rows(self, layer: int) -> LayerRows:
        return self.fewer.get(layer, self.whole)

    def crossing(self, layer: int, *, drops: bool) -> LayerRows:
        """The rows of a layer as they cross. drops: dropout follows, so that sums must be made after it."""
        if layer not in self._crossing:
            late = self.rules.cover and self.wires.at(layer).late
            covers = self.rules.covers(reads=self.attends or layer in self.rows_of, drops=drops, late=late)
            self._crossing[layer] = self._crossed(layer, covers=covers)
        return self._crossing[layer]

    def _crossed(self, layer: int, *, covers: bool) -> LayerRows:
        """The rows of a layer, with sums of rows (covers) and by host. Layers of all rows share them."""
        if not covers and self.hosts is None:
            return self.rows(layer)
        key = layer if layer in self.fewer else None, covers
        if key not in self.crossed:
            x = self.x if isinstance(self.x, Tensor) else self.x.weight
            assert x is not None
            name, kind = f"setup/{self.name} cover {layer}", fine(x.dtype)
            rows, transport = self.rows(layer), self.transport
            if self.hosts is None:
                self.crossed[key] = covered(rows, kind, transport, name)
            else:
                self.crossed[key] = by_host(rows, self.hosts, kind if covers else None, transport, name)
        return self.crossed[key]

    def layer_channel(self, layer: int, rows: LayerRows) -> Channel | HostChannel:
        """The channel that brings a layer's halo."""
        return self.channel(f"layer{layer}", lambda: self._build(layer, rows))

    def _build(self, layer: int, rows: LayerRows) -> Channel | HostChannel:
        name, routes, first = f"{self.name}/layer{layer}", rows.by_host, sum(rows.route.recv_counts)
        ids = self.ids[: rows.sources]
        if routes is not None:
            ids = routes.ids
        elif rows.cover is not None:
            ids = rows.cover.numbers_of(ids)
        channel = self.wires.at(layer).build(
            name=name,
            route=WholeRoute(routes.across) if routes is not None else rows.cover or rows.route,
            transport=self.transport,
            clock=self.clock,
            facts=RowFacts(
                route=rows.route,
                ids=Sides(ids, rows.halo_ids[:first]),
                grades=self._grades_of(layer, rows),
                squares=None if self.attends else partial(self._squares, layer, rows),
                summed=not self.attends,
            ),
        )
        if routes is None:
            return channel

        def fresh(what: str, route: Route) -> Channel:
            return Wire().build(name=f"{name} {what}", route=route, transport=self.transport, clock=self.clock)

        return HostChannel(routes, channel, fresh)

    def _squares(self, layer: int, rows: LayerRows) -> Tensor:
        """The sum of the squared weights by which readers multiply each row that crosses."""
        squares_h = column_squares(rows.matrices.outer)
        if rows.by_host is None or rows.by_host.handed is None:
            return squares_h
        first = sum(rows.route.recv_counts)
        name = f"setup/{self.name} squares of readers {layer}"
        others = halo_of(rows.by_host.handed.T, squares_h[first:, None], self.transport, name)
        return squares_h[:first] + others[:, 0]

    def _graded(self) -> dict[int | None, Sides]:
        """The grades of rows, by layer that computes fewer rows; under None, the grades of all rows."""
        degree_n, name = self.graph.arcs.indptr.diff().cpu(), f"setup/{self.name} grades"
        owned = boundary_grades(degree_n, self.graph.rows.route, self.transport, name).to(self.ids.device)
        return {None: Sides(owned, owned[:0])}

    def _grades_of(self, layer: int, rows: LayerRows) -> Sides | None:
        """The grades of the rows and sums that cross for a layer; a sum has the highest one of its rows."""
        if not self._grades:
            return None
        ours, name = self._grades[None].owned[: rows.sources], f"setup/{self.name} grades {layer}"
        if rows.by_host is not None:
            ours = largest_of_hosts(rows.by_host, ours, self.transport, name)
        elif rows.cover is not None:
            ours = rows.cover.numbers_of(ours)
        return Sides(ours, halo_of(rows.route, ours, self.transport, name))

    def num_targets(self, layer: int) -> int:
        return self.rows(layer).targets

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> Message[Any]:
        message: Message[Any]
        if isinstance(self.known, KnownHalo) and x is self.known.x:
            rows, halo = self.rows(layer), self._known_halo(layer).halo
            message = SourceMessage(rows, row_map(x, self.ids), lambda: row_map(halo, rows.halo_ids))
        else:
            message = super().send(x, layer, row_map)  # rows are posted before the map
        self.clock.dropped |= row_map.p > 0
        return message

    def posted(self, x: Tensor, layer: int, row_map: RowMap) -> Message[Any]:
        return halo_message(self, x, layer, row_map)

    def _known_halo(self, layer: int) -> KnownHalo:
        """The precomputed halo, with only the rows that the layer reads."""
        if layer not in self._halos:
            assert isinstance(self.known, KnownHalo)
            ids = self.rows(layer).halo_ids
            chosen = torch.isin(self.whole.halo_ids, ids).nonzero().flatten() if not ids.is_meta else ids
            self._halos[layer] = self.known.of(chosen)
        return self._halos[layer]


class SourceMessage:
    """This rank's rows, and the halo rows that its arcs read, which may still be on their way."""

    def __init__(
        self,
        rows: LayerRows,
        read: Operand,
        halo: Callable[[], Operand],
        absent: Callable[[], Tensor | None] | None = None,
    ) -> None:
        """absent: mask of the halo rows that did not cross, which attention must leave out."""
        self.rows, self._read, self._halo, self._absent = rows, read, halo, absent

    @cached_property
    def _own_and_read(self) -> tuple[Any, Any]:
        read, count = self._read, self.rows.targets
        if isinstance(read, Tensor):
            return with_first(read, count)
        return replace(read, x=read.x[:count], ids=read.ids[:count]) if isinstance(read, Mapped) else read, read

    @property
    def own(self) -> Any:
        return self._own_and_read[0]

    def aggregate(self) -> Tensor:
        return self.through(lambda _, total: total)

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        # Both overlap the exchange. Autograd goes back in the other order: it computes the gradients of own's weights,
        # which can then be sent, before the product's backward pass, which takes long.
        inner = spmm(self.rows.matrices.inner, _dense(self._own_and_read[1]))
        beside = None if own is None else own(self.own)
        return update(beside, spmm(self.rows.matrices.outer, _dense(self._halo()), inner))

    def mapped(self, dense: Callable[[Any], Tensor]) -> "SourceMessage":
        self._require_rows()
        return SourceMessage(self.rows, dense(self._read), lambda: dense(self._halo()), self._absent)

    def sources(self) -> Tensor:
        self._require_rows()
        return torch.cat([_dense(self._own_and_read[1]), _dense(self._halo())])

    def _require_rows(self) -> None:
        if self.rows.cover is not None:
            raise InputError(
                "a layer reads or maps single rows of other ranks, and sums of rows crossed: its convolution must not "
                "have sums = True"
            )

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        source_mHO = self.sources().unflatten(1, weight_HO.shape)
        source_mH = (source_mHO * weight_HO).sum(-1)
        absent_h = self._absent() if self._absent else None
        if absent_h is not None:
            absent_m = torch.nn.functional.pad(absent_h, (len(source_mH) - len(absent_h), 0)).to(source_mH.device)
            source_mH = source_mH.masked_fill(absent_m[:, None], -torch.inf)
        return attend(self.rows.matrices.arcs, target_nH, source_mH, source_mHO)


def halo_message(view: PartitionedView, x: Tensor, layer: int, row_map: RowMap) -> SourceMessage:
    """Post the boundary rows of x; work that is done before the halo is read overlaps the exchange."""
    rows = view.crossing(layer, drops=row_map.p > 0)
    channel = view.layer_channel(layer, rows)
    mapped = row_map.relu or row_map.p > 0
    is_input = x.device != view.ids.device or (torch.is_grad_enabled() and not x.requires_grad)
    if rows.cover is not None:  # sums are of rows after their activation and dropout
        read = row_map(x, view.ids) if is_input else row_map.dense(x, view.ids)
        posted, token = channel.begin(_dense(read).to(view.ids.device), mapped=mapped)
        return SourceMessage(rows, read if is_input else posted, lambda: channel.end(token))
    if rows.by_host is not None and x.device != view.ids.device:  # a product makes the rows that cross
        _, token = channel.begin(x.to(view.ids.device), relu=row_map.relu)
    else:
        x, token = channel.begin(x, relu=row_map.relu, mapped=mapped, device=view.ids.device)

    def halo() -> Tensor:
        # Halo rows were activated before they crossed; dropout comes afterwards, with the owner's mask.
        return row_map.after_activation().dense(channel.end(token), rows.halo_ids)

    read = row_map(x, view.ids) if is_input else row_map.dense(x, view.ids)
    return SourceMessage(rows, read, halo, lambda: channel.absent(len(rows.halo_ids)))


def _dense(rows: Operand) -> Tensor:
    if isinstance(rows, Mapped):
        return rows.whole()
    assert isinstance(rows, Tensor), "a layer maps its input rows before it aggregates them"
    return rows
