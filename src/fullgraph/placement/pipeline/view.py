"""The view of one chunk of a pipeline: rows of chunks done this step are fresh, the others historical.

Legend: N nodes, w of them this way's own; n rows of the chunk, t of them that a layer computes, h of other ways' chunks
in the same slot; D features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fullgraph.exchange import Channel
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.nn.view import IDENTITY, Features, Message, RowMap, Update, at_once
from fullgraph.ops import Adjacency, Structure, attend
from fullgraph.placement.known import Known, KnownMessage, with_first
from fullgraph.placement.pipeline.rows import Chunk, Gather, Mix, StageRows, Store


@dataclass(eq=False, kw_only=True)
class ChunkView:
    """A chunk, as a model sees it."""

    stage: StageRows
    chunk: Chunk
    known: Known | None = None
    _known: dict[int, Known] = field(default_factory=dict, init=False)  # by layer: of the rows that it computes

    @property
    def ids(self) -> Tensor:
        return self.chunk.ids

    @property
    def step(self) -> int:
        return self.stage.clock.step

    @property
    def num_nodes(self) -> int:
        return self.stage.num_nodes

    @property
    def arcs(self) -> Structure:
        return self.chunk.compact

    @property
    def again(self) -> bool:
        return False

    def plan(self, x: Features, layer: int, shape: LayerShape) -> LayerPlan:
        known = self.known.kind if self.known is not None and x is self.known.x else ""
        rows = self.stage.computed.get(layer, self.num_nodes)
        return self.stage.rules.plan(layer, shape, known=known, sparse=isinstance(x, Adjacency), rows=rows)

    def send(self, x: Features, layer: int, row_map: RowMap = IDENTITY) -> "Message[Any]":
        if self.known is not None and x is self.known.x:
            targets = self._targets(layer)
            if layer not in self._known:
                self._known[layer] = self.known.first(targets)
            return KnownMessage(self._known[layer], self.ids[:targets], row_map)
        assert isinstance(x, Tensor), "sparse rows do not cross; a layer maps them first"
        return ChunkMessage(self, x, layer, row_map)

    def aggregate(self, x: Tensor, layer: int) -> Tensor:
        return ChunkMessage(self, x, layer, IDENTITY).aggregate()

    def sources(self, x: Tensor, layer: int) -> Tensor:
        return ChunkMessage(self, x, layer, IDENTITY).sources()

    def targets(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return with_first(x, self._targets(layer))

    def _targets(self, layer: int) -> int:
        """How many rows of the chunk a layer computes."""
        return len(self.stage.at(layer, self.chunk).local)

    def reduce(self, x: Tensor) -> Tensor:
        raise AssertionError("a chunk's sum is not the graph's; norms that need that are refused")


class ChunkMessage:
    """The chunk's rows, on their way to the other ways; what is done before `aggregate` hides the wire."""

    def __init__(self, view: ChunkView, x: Tensor, layer: int, row_map: RowMap) -> None:
        stage, chunk = view.stage, view.stage.at(layer, view.chunk)
        self.stage, self.chunk, self.row_map = stage, chunk, row_map
        self.store = stage.store(layer, x, row_map)
        self.channel: Channel | None = None
        if stage.channel_of is not None and stage.transport.size > 1:
            make = stage.channel_of
            self.channel = stage.channel(f"layer{layer}/chunk{chunk.index}", lambda: make(layer, chunk))
            x, self.token = self.channel.begin(x, relu=row_map.relu, mapped=row_map.relu or row_map.p > 0)
        stage.clock.dropped |= row_map.p > 0
        read = row_map.dense(x, chunk.ids)
        stage.keep(self.store, chunk.span.rows, x, read, relu=row_map.relu)
        self.own, self._read = with_first(read, len(chunk.local))

    def aggregate(self) -> Tensor:
        z: Tensor = Mix.apply(*self._rows())  # type: ignore[no-untyped-call]
        return z

    def through(self, update: Update, own: Callable[[Any], Any] | None = None) -> Tensor:
        return at_once(self, update, own)

    def mapped(self, dense: Callable[[Any], Tensor]) -> "Message[Tensor]":
        raise AssertionError("rows are mapped before they cross here")

    def sources(self) -> Tensor:
        rows: Tensor = Gather.apply(*self._rows())  # type: ignore[no-untyped-call]
        return rows

    def attend(self, target_nH: Tensor, weight_HO: Tensor) -> Tensor:
        source_mHO = self.sources().unflatten(1, weight_HO.shape)
        return attend(self.chunk.compact, target_nH, (source_mHO * weight_HO).sum(-1), source_mHO)

    def _rows(self) -> tuple[Tensor, Tensor, Store, Chunk, float]:
        return self._read, self._halo(), self.store, self.chunk, self.stage.history.weight

    def _halo(self) -> Tensor:
        chunk = self.chunk
        if self.channel is None:
            return self._read.new_zeros(len(chunk.halo), self._read.shape[1])
        halo = self.channel.end(self.token)
        mapped = self.row_map.after_activation().dense(halo, chunk.halo_ids)
        self.stage.keep(self.store, chunk.halo, halo, mapped)
        return mapped
