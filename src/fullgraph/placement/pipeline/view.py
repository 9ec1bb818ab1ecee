"""A stage's rows, and the view of one chunk: rows of chunks that are done in this step are fresh, others historical.

Legend: N nodes, w of them this way's own; n rows of the chunk, t of them that a layer computes, h of other ways' chunks
in the same slot; D features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullgraph.exchange import Channel, Clock, Held
from fullgraph.nn.view import AtOnce, Message, RowMap
from fullgraph.ops import attend
from fullgraph.placement.known import Known, KnownHalo, with_first
from fullgraph.placement.pipeline.rows import Chunk, Gather, History, Mix, Store
from fullgraph.placement.pipeline.setup import Setup
from fullgraph.placement.view import Channels, ModelView, Tensors


@dataclass(eq=False, kw_only=True)
class StageRows(Channels):
    """The shared state of a stage's chunks: a store per layer, and channels to the other ways of the stage."""

    setup: Setup
    alone: bool = False  # measures one chunk: no exchange, and layers compute all of its rows
    stores: dict[int, Store] = field(default_factory=dict, init=False)
    _fewer: dict[int, Sequence[Chunk]] = field(default_factory=dict, init=False)
    _loaded_rows: dict[str, Tensor] = field(default_factory=dict, init=False)  # for stores that do not exist yet

    @property
    def clock(self) -> Clock:
        return self.setup.clock

    @property
    def history(self) -> History:
        return self.setup.placement.history

    @property
    def num_nodes(self) -> int:
        return self.setup.view.num_nodes

    def halo(self, layer: int, chunk: Chunk) -> Channel | None:
        """The channel to the other ways, if there are any."""
        if self.alone or self.setup.ways == 1:
            return None
        return self.channel(f"layer{layer}/chunk{chunk.index}", lambda: self.setup.halo_channel(layer, chunk))

    def at(self, layer: int, whole: Chunk) -> Chunk:
        """A chunk as a layer sees it. It is made at its first use: other stages have the other layers."""
        if self.alone or layer not in self.setup.trimmed:
            return whole
        if layer not in self._fewer:
            self._fewer[layer] = self.setup.chunks(layer)
        return self._fewer[layer][whole.index]

    def store(self, layer: int, like: Tensor, row_map: RowMap) -> Store:
        if layer not in self.stores:
            store = self.stores[layer] = Store(self.num_nodes, len(self.setup.span), like, history=self.setup.slots > 1)
            for name, rows in self._rows_of(layer, store).items():
                if name in self._loaded_rows:
                    rows.copy_(self._loaded_rows.pop(name))
        with torch.no_grad():
            self.stores[layer].open(self.clock.step, row_map, self.setup.ids, self.history)
        return self.stores[layer]

    def _rows_of(self, layer: int, store: Store) -> dict[str, Tensor]:
        """The tensors of a store that later steps read, by name."""
        rows = {} if store.history is None else {f"history.{layer}": store.history}
        return rows | ({f"gradients.{layer}": store.grads} if self.history.gradients == "last" else {})

    def keep(self, store: Store, at: slice | Tensor, bare: Tensor, mapped: Tensor, *, relu: bool = False) -> None:
        """In a step that takes a snapshot, write rows into it: before activation and dropout, or after them."""
        if store.history is not None and self.history.snaps(self.clock.step):
            rows = (mapped if self.history.dropped else bare).detach()
            store.history[at] = rows.relu() if relu and not self.history.dropped else rows

    def held(self) -> Held:
        kept = dict(self._loaded_rows)
        for layer, store in self.stores.items():
            kept |= self._rows_of(layer, store)
        return super().held() | kept

    def load_state(self, state: Tensors) -> None:
        self.stores.clear()
        self._loaded_rows = {name: rows for name, rows in state.items() if name.startswith(("history.", "gradients."))}
        super().load_state({name: rows for name, rows in state.items() if name not in self._loaded_rows})


class ChunkView(ModelView):
    """A chunk, as a model sees it."""

    def __init__(self, stage: StageRows, chunk: Chunk, known: Known | KnownHalo | None) -> None:
        self.stage, self.chunk, self.known = stage, chunk, known
        self.num_nodes = stage.num_nodes
        self.rules, self.computed = stage.setup.placement.rules, stage.setup.computed

    @property
    def ids(self) -> Tensor:
        return self.chunk.ids

    @property
    def step(self) -> int:
        return self.stage.clock.step

    @property
    def again(self) -> bool:
        return False

    def num_targets(self, layer: int) -> int:
        return len(self.stage.at(layer, self.chunk).local)

    def posted(self, x: Tensor, layer: int, row_map: RowMap) -> Message[Any]:
        return ChunkMessage(self, x, layer, row_map)

    def reduce(self, x: Tensor) -> Tensor:
        raise AssertionError("a chunk's sum is not the graph's; norms that need that are refused")


class ChunkMessage(AtOnce):
    """The chunk's rows, sent to the other ways; work before `aggregate` overlaps the exchange."""

    def __init__(self, view: ChunkView, x: Tensor, layer: int, row_map: RowMap) -> None:
        stage, chunk = view.stage, view.stage.at(layer, view.chunk)
        self.stage, self.chunk, self.row_map = stage, chunk, row_map
        self.store = stage.store(layer, x, row_map)
        self.channel = stage.halo(layer, chunk)
        if self.channel is not None:
            x, self.token = self.channel.begin(x, relu=row_map.relu, mapped=row_map.relu or row_map.p > 0)
        stage.clock.dropped |= row_map.p > 0
        read = row_map.dense(x, chunk.ids)
        stage.keep(self.store, chunk.span.rows, x, read, relu=row_map.relu)
        self.own, self._read = with_first(read, len(chunk.local))

    def aggregate(self) -> Tensor:
        z: Tensor = Mix.apply(*self._rows())  # type: ignore[no-untyped-call]
        return z

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
