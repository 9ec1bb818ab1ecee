"""A pipeline without numbers: the same stages, chunks and channels, over structures that have sizes alone.

Ways are even shares of the nodes, and so are the chunks of a way; what ways read of one another is spread over slots,
and so are the rows that a layer computes.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wire, Wires
from fullgraph.nn import Chain
from fullgraph.placement.counts import META, Counts, Kind, LayerCounts, ids, pattern
from fullgraph.placement.holding.adjacency import fine
from fullgraph.placement.pipeline.live import LiveRows
from fullgraph.placement.pipeline.rows import Chunk, Span, StageRows
from fullgraph.placement.pipeline.setup import CHUNKS
from fullgraph.placement.pipeline.stages import Border, PipelineStep
from fullgraph.placement.pipeline.view import ChunkView
from fullgraph.placement.shard import Shard
from fullgraph.placement.sketch import features, known, labels
from fullgraph.plan import HaloRoute, HopRoute
from fullgraph.transport import SubTransport, Transport

if TYPE_CHECKING:
    from fullgraph.placement.pipeline.placement import Pipeline


def sketched(placement: "Pipeline", counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
    parts = replace(placement.by_parts, isolated=False).sketch(counts, transport, Wire(), aggregation)
    sketch = _Sketch(placement, counts, transport, wire, aggregation, parts.clock)
    return replace(parts, executor=placement.ending(sketch.step(sketch.place["stage"]), parts.executor))


@dataclass(eq=False, kw_only=True)
class SketchedStep(PipelineStep):
    """Knows what the first stages of all ways would find out and tell the others."""

    firsts: Sequence[PipelineStep] = ()

    def _costs(self, model: Chain) -> tuple[list[float], Tensor]:
        tables = [first.table(model) for first in self.firsts]
        return sum(table[:, 0] for table in tables).tolist(), tables[0][:, 1:].long()  # type: ignore[union-attr]


class _Sketch:
    def __init__(
        self, placement: "Pipeline", counts: Counts, transport: Transport, wire: Wires, aggregation: str, clock: Clock
    ) -> None:
        if aggregation == "attention":
            raise InputError("what attention reads in a pipeline depends on the graph, not on its size; measure it")
        self.placement, self.counts, self.transport, self.wire, self.clock = placement, counts, transport, wire, clock
        self.mesh = placement.mesh(transport.size)
        self.place = self.mesh.at(transport.rank)
        self.stages, self.ways = self.mesh.sizes["stage"], self.mesh.sizes["way"]
        self.slots = placement.chunks or CHUNKS * self.stages
        self.halo_lane = transport.fork() if self.ways > 1 else transport
        self.lanes = [transport.fork() for _ in range(min(2, self.stages - 1))]
        self.kind = Kind(
            aggregation=aggregation, weighted=counts.graph.weighted, undirected=False, dtype=fine(placement.dtype)
        )
        self._look_at(self.place["way"])

    def _look_at(self, way: int) -> None:
        nodes, self.place = self.counts.graph.nodes, {**self.place, "way": way}
        self.way = Span(nodes * way // self.ways, nodes * (way + 1) // self.ways)
        self.live = self._live_rows()
        self.chunks = self._chunks()

    def step(self, stage: int) -> SketchedStep:
        """This rank's; every way's first stage has a say in where the model is cut, and equal ways say the same."""
        ways = [self.place["way"]] if self.counts.even else range(self.ways)
        return replace(self._step(stage), firsts=[self._of(way)._step(0) for way in ways])

    def _of(self, way: int) -> "_Sketch":
        other = copy(self)
        other._look_at(way)
        return other

    def _step(self, stage: int) -> SketchedStep:
        placement, counts = self.placement, self.counts
        halos = SubTransport(self.halo_lane, self.mesh.along("way", self.transport.rank))
        rows = StageRows(
            num_nodes=counts.graph.nodes,
            way=self.way,
            ids=ids(counts.graph.nodes),
            transport=halos,
            clock=self.clock,
            narrow_first=placement.narrow_first,
            history=placement.history,
            single=self.slots == 1,
            channel_of=lambda layer, chunk: self._channel(layer, chunk, halos),
            live=self.live,
            chunks_of=self._chunks,
        )
        inputs = [features(counts, len(c.span), placement.dtype, dense=placement.dense_input) for c in self.chunks]
        ahead = [known(x, c.forward.structure.num_arcs) if placement.precompute else None
                 for x, c in zip(inputs, self.chunks, strict=True)]  # fmt: skip
        train = counts.train // max(1, self.ways * self.slots)
        last = self.stages - 1
        return SketchedStep(
            stage=stage,
            stages=self.stages,
            transport=self.transport,
            rows=rows,
            chunks=self.chunks,
            views=[ChunkView(stage=rows, chunk=c, known=k if stage == 0 else None)
                   for c, k in zip(self.chunks, ahead, strict=True)],
            below=self._border(stage - 1) if stage else None,
            above=self._border(stage) if stage < last else None,
            inputs=[] if stage else inputs,
            targets=[(ids(train), labels(counts, train)) for _ in self.chunks] if stage == last else [],
            count=counts.train,
            like=torch.empty(0, dtype=placement.dtype, device=META),
            shuffle=placement.shuffle,
            seed=placement.seed,
            cut=placement.cut,
            measure=False,
        )  # fmt: skip

    def _channel(self, layer: int, chunk: Chunk, halos: Transport) -> Channel:
        return self.wire.at(layer).build(
            name=f"halo/layer{layer}/chunk{chunk.index}", route=chunk.route, transport=halos, clock=self.clock,
            facts=RowFacts(ids=Sides(chunk.ids, chunk.halo_ids), grades=None, summed=True),
        )  # fmt: skip

    def _border(self, border: int) -> Border:
        ranks = [self.mesh.rank(stage=stage, way=self.place["way"]) for stage in (border, border + 1)]
        if self.transport.rank not in ranks:  # of a stage that is asked for its widths alone
            return Border(channel_of=_never)
        pair = SubTransport(self.lanes[border % 2], ranks)

        def channel_of(chunk: Chunk, rows: int) -> Channel:
            return self.placement.hop.at(border).build(
                name=f"hops/{border}/chunk{chunk.index}", route=HopRoute(pair.rank, rows), transport=pair,
                clock=self.clock, facts=None,
            )  # fmt: skip

        return Border(channel_of=channel_of)

    def _live_rows(self) -> LiveRows:
        """As many rows as the parts of this way that were counted compute."""
        trims = any(hop is not None for hop in self.placement.hops)
        layers = sorted(self.counts.ranks[0].fewer) if trims else []
        rows, arcs = self._of_way(None)
        fewer = {layer: self._of_way(layer) for layer in layers}
        return LiveRows(
            _shares(len(self.way), self.slots),
            {layer: _shares(len(self.way) * found // max(1, rows), self.slots) for layer, (found, _) in fewer.items()},
            {layer: found / max(1, arcs) for layer, (_, found) in fewer.items()},
        )

    def _chunks(self, layer: int | None = None) -> list[Chunk]:
        """The chunks as a layer sees them; None: as layers do that compute all rows."""
        live, nodes, way = self.live, self.counts.graph.nodes, len(self.way)
        read = live.whole if layer is None else live.after(layer - 1)
        computed = live.whole if layer is None else live.after(layer)
        halo, sent = self._halo(layer), self._sent(layer)
        outer = self._outer(layer) // self.slots
        _, of_way = self._of_way(layer)
        chunks = []
        for index, first in enumerate(accumulate(live.whole[:-1], initial=0)):
            rows, targets = read[index], computed[index]
            arcs = of_way * targets // max(1, sum(computed))
            chunks.append(
                Chunk(
                    index=index,
                    span=Span(self.way.first + first, self.way.first + first + rows),
                    local=Span(first, first + targets),
                    ids=ids(rows),
                    halo=ids(sum(halo)),
                    halo_ids=ids(sum(halo)),
                    route=HaloRoute(ids(sum(sent)), sent, halo, rows),
                    forward=self.kind.matrix(targets, arcs, nodes),
                    backward=self.kind.matrix(rows, arcs - min(arcs, outer), way),
                    backward_halo=self.kind.matrix(sum(halo), outer if sum(halo) else 0, way),
                    arcs=pattern(targets, 0, nodes),
                    grades=None,
                )
            )
        return chunks

    def _parts(self, way: int | None = None) -> range:
        """The parts of a way; None: of this one."""
        first = (self.place["way"] if way is None else way) * self.stages
        return range(first, first + self.stages)

    def _part(self, part: int, layer: int | None) -> LayerCounts:
        rank = self.counts.ranks[part]
        return rank.whole if layer is None else rank.fewer.get(layer, rank.whole)

    def _of_way(self, layer: int | None) -> tuple[int, int]:
        """Rows of this way that a layer computes, and arcs into them."""
        parts = [self._part(part, layer) for part in self._parts()]
        rows = sum(of.targets for of in parts)
        return rows, sum(of.inner + of.outer for of in parts) + (rows if self.kind.loops else 0)

    def _halo(self, layer: int | None) -> tuple[int, ...]:
        """Rows that this way reads of every other in one slot, by way."""
        return tuple(self._read(layer, self.place["way"], way) for way in range(self.ways))

    def _sent(self, layer: int | None) -> tuple[int, ...]:
        """Rows that every other way reads of this one in one slot, by way."""
        return tuple(self._read(layer, way, self.place["way"]) for way in range(self.ways))

    def _read(self, layer: int | None, reader: int, owner: int) -> int:
        """Rows that one way reads of another in one slot; of its parts that read the same row, one does.

        They are taken to read rows of another part by chance.
        """
        if reader == owner:
            return 0
        found = 0.0
        for peer in self._parts(owner):
            rows = max(1, self._part(peer, layer).sources)
            found += rows * (1 - prod(1 - self._part(part, layer).read[peer] / rows for part in self._parts(reader)))
        return round(found / self.slots)

    def _outer(self, layer: int | None) -> int:
        """Arcs that come from other ways."""
        total = 0
        for part in self._parts():
            of = self._part(part, layer)
            beyond = sum(rows for peer, rows in enumerate(of.read) if peer not in self._parts())
            total += of.outer * beyond // max(1, of.halo)
        return total


def _shares(total: int, shares: int) -> list[int]:
    """Even shares; of fewer rows, none is larger."""
    return [total // shares + (index < total % shares) for index in range(shares)]


def _never(chunk: Chunk, rows: int) -> Channel:
    raise AssertionError("no message of another stage is written down")
