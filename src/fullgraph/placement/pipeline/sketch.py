"""A pipeline without numbers: the same stages, chunks and channels, over structures that have sizes alone.

Ways are even shares of the nodes, and so are the chunks of a way; what ways read of one another is spread over slots.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wire, Wires
from fullgraph.nn import Chain
from fullgraph.placement.counts import META, Counts, Kind, ids, pattern
from fullgraph.placement.holding.adjacency import fine
from fullgraph.placement.pipeline.rows import Chunk, Span, StageRows
from fullgraph.placement.pipeline.setup import CHUNKS
from fullgraph.placement.pipeline.stages import Border, PipelineStep
from fullgraph.placement.pipeline.view import ChunkView
from fullgraph.placement.shard import Shard
from fullgraph.placement.sketch import features, known, labels, rows_of, shard_of
from fullgraph.plan import HaloRoute, HopRoute
from fullgraph.transport import Among, Transport

if TYPE_CHECKING:
    from fullgraph.placement.pipeline.placement import Pipeline


def sketched(placement: "Pipeline", counts: Counts, transport: Transport, wire: Wires, aggregation: str) -> Shard:
    sketch = _Sketch(placement, counts, transport, wire, aggregation)
    step = sketch.step(sketch.place["stage"])
    parts = replace(placement.by_parts, isolated=False).sketch(counts, transport, Wire(), aggregation)
    rows = rows_of(counts, parts.train.view, parts.train.x, counts.ranks[transport.rank].train, transport)
    return shard_of(counts, rows, step, transport, sketch.clock)


@dataclass(eq=False, kw_only=True)
class SketchedStep(PipelineStep):
    """Knows what the first stage would find out and tell the others."""

    first: PipelineStep | None

    def _costs(self, model: Chain) -> tuple[list[float], Tensor]:
        table = (self.first or self).table(model)
        return table[:, 0].tolist(), table[:, 1:].long()


class _Sketch:
    def __init__(
        self, placement: "Pipeline", counts: Counts, transport: Transport, wire: Wires, aggregation: str
    ) -> None:
        if aggregation == "attention":
            raise InputError("what attention reads in a pipeline depends on the graph, not on its size; measure it")
        self.placement, self.counts, self.transport, self.wire = placement, counts, transport, wire
        self.mesh = placement.mesh(transport.size)
        self.place = self.mesh.at(transport.rank)
        self.stages, self.ways = self.mesh.sizes["stage"], self.mesh.sizes["way"]
        self.slots = placement.chunks or CHUNKS * self.stages
        self.clock = Clock(use="rows", seed=placement.seed)
        self.kind = Kind(
            aggregation=aggregation, weighted=counts.graph.weighted, undirected=False, dtype=fine(placement.dtype)
        )
        nodes, way = counts.graph.nodes, self.place["way"]
        self.way = Span(nodes * way // self.ways, nodes * (way + 1) // self.ways)
        self.halo_lane = transport.fork() if self.ways > 1 else transport
        self.lanes = [transport.fork() for _ in range(min(2, self.stages - 1))]
        self.chunks = [self._chunk(index) for index in range(self.slots)]

    def step(self, stage: int) -> SketchedStep:
        placement, counts = self.placement, self.counts
        halos = Among(self.halo_lane, self.mesh.along("way", self.transport.rank))
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
            first=self.step(0) if stage else None,
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
        pair = Among(self.lanes[border % 2], ranks)

        def channel_of(chunk: Chunk) -> Channel:
            return self.placement.hop.at(border).build(
                name=f"hops/{border}/chunk{chunk.index}", route=HopRoute(pair.rank, len(chunk.span)), transport=pair,
                clock=self.clock, facts=None,
            )  # fmt: skip

        return Border(channel_of=channel_of)

    def _chunk(self, index: int) -> Chunk:
        nodes, way = self.counts.graph.nodes, len(self.way)
        local = Span(way * index // self.slots, way * (index + 1) // self.slots)
        span = Span(local.first + self.way.first, local.last + self.way.first)
        rows, halo = len(span), self._halo()
        arcs = self.counts.arcs * rows // max(1, nodes) + (rows if self.kind.loops else 0)
        inner = arcs if self.ways == 1 else arcs - self._outer() // self.slots
        read = sum(halo)
        return Chunk(
            index=index,
            span=span,
            local=local,
            ids=ids(rows),
            halo=ids(read),
            halo_ids=ids(read),
            route=HaloRoute(ids(read), halo, halo, rows),
            forward=self.kind.matrix(rows, arcs, nodes),
            backward=self.kind.matrix(rows, inner, way),
            backward_halo=self.kind.matrix(read, self._outer() // self.slots if read else 0, way),
            arcs=pattern(rows, 0, nodes),
            grades=None,
        )

    def _of_way(self) -> range:
        """The parts of this way."""
        first = self.place["way"] * self.stages
        return range(first, first + self.stages)

    def _halo(self) -> tuple[int, ...]:
        """Rows that this way reads of every other in one slot, by way; of its parts that read the same row, one does.

        They are taken to read rows of another part by chance.
        """
        found = [0.0] * self.ways
        for peer, owner in enumerate(self.counts.ranks):
            if peer not in self._of_way():
                rows = max(1, owner.whole.sources)
                unread = prod(1 - self.counts.ranks[part].whole.read[peer] / rows for part in self._of_way())
                found[peer // self.stages] += rows * (1 - unread)
        return tuple(round(rows / self.slots) for rows in found)

    def _outer(self) -> int:
        """Arcs that come from other ways."""
        total = 0
        for part in self._of_way():
            whole = self.counts.ranks[part].whole
            beyond = sum(rows for peer, rows in enumerate(whole.read) if peer not in self._of_way())
            total += whole.outer * beyond // max(1, whole.halo)
        return total


def _never(chunk: Chunk) -> Channel:
    raise AssertionError("no message of another stage is written down")
