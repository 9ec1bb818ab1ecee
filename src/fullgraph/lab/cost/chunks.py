"""The chunks of a pipeline from counts, for a dry run on meta tensors.

Ways are even shares of the nodes, and chunks are even shares of a way. The rows that ways read of one another, and the
rows that a layer computes, are distributed evenly over slots.
"""

from copy import copy
from dataclasses import replace
from itertools import accumulate
from math import prod

from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.exchange import Wires
from fullgraph.lab.cost.counts import META, Counts, Kind, LayerCounts, aggregated, features, ids, labels, pattern
from fullgraph.nn.view import Features
from fullgraph.placement import Pipeline
from fullgraph.placement.known import Known
from fullgraph.placement.pipeline.rows import Chunk, Span
from fullgraph.placement.pipeline.setup import Setup
from fullgraph.placement.pipeline.step import PipelineStep
from fullgraph.placement.view import RankView
from fullgraph.plan import HaloRoute


class SetupOfCounts(Setup):
    attends, device, computed = False, META, {}

    def __init__(self, placement: Pipeline, view: RankView, counts: Counts, wire: Wires, aggregation: str) -> None:
        """view: the view of this rank's part."""
        if aggregation == "attention":
            raise InputError("what attention reads in a pipeline depends on the graph, not on its size; measure it")
        super().__init__(replace(placement, measure=False), view, wire, view.clock)
        self.counts, self.ids = counts, ids(counts.graph.nodes)
        self.trimmed = sorted(counts.ranks[0].fewer) if placement.hops_trim else []
        self.kind = replace(Kind.of(counts, aggregation, placement.dtype), undirected=False)

    def step(self) -> PipelineStep:
        """This rank's step. The first stages of all ways decide where the model is cut; equal ways need only one."""
        _ = self.halos, self.lanes  # shared by the copies for other ways
        ways = [self.way] if self.counts.even else range(self.ways)
        return PipelineStep(self, firsts=[PipelineStep(self._first(way)) for way in ways])

    def _first(self, way: int) -> "SetupOfCounts":
        other = copy(self)
        other.way, other.stage = way, 0
        return other

    @property
    def span(self) -> Span:  # type: ignore[override]
        nodes = self.counts.graph.nodes
        return Span(nodes * self.way // self.ways, nodes * (self.way + 1) // self.ways)

    def inputs(self, chunks: list[Chunk]) -> list[tuple[Features, Known | None]]:
        placement, given = self.placement, []
        for chunk in chunks if self.stage == 0 else []:
            x = features(self.counts, len(chunk.span), placement.dtype, dense=placement.rules.dense_input)
            ahead = self.view.known is not None
            given.append((x, Known(x, aggregated(x, chunk.forward.structure.num_arcs)) if ahead else None))
        return given

    def targets(self, chunks: list[Chunk]) -> list[tuple[Tensor, Tensor]]:
        train = self.counts.train // max(1, self.ways * self.slots)
        return [(ids(train), labels(self.counts, train)) for _ in chunks] if self.stage == self.stages - 1 else []

    def computed_rows(self, layer: int | None) -> list[int]:
        """The number of rows that the counted parts of this way compute."""
        (every, _), (rows, _) = self._of_way(None), self._of_way(layer)
        return _shares(len(self.span) if layer is None else len(self.span) * rows // max(1, every), self.slots)

    def arc_share(self, layer: int) -> float:
        return self._of_way(layer)[1] / max(1, self._of_way(None)[1])

    def chunks(self, layer: int | None = None) -> list[Chunk]:
        nodes, way, whole = self.counts.graph.nodes, len(self.span), self.computed_rows(None)
        read = whole if layer is None else self.rows_after(layer - 1)
        computed = whole if layer is None else self.rows_after(layer)
        halo, sent = self._halo(layer), self._sent(layer)
        outer = self._outer(layer) // self.slots
        _, of_way = self._of_way(layer)
        chunks = []
        for index, first in enumerate(accumulate(whole[:-1], initial=0)):
            rows, targets = read[index], computed[index]
            arcs = of_way * targets // max(1, sum(computed))
            chunks.append(
                Chunk(
                    index=index,
                    span=Span(self.span.first + first, self.span.first + first + rows),
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
        """The parts of a way; None: of this rank's way."""
        first = (self.way if way is None else way) * self.stages
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
        """By way, the rows that this way reads of it in one slot."""
        return tuple(self._read(layer, self.way, way) for way in range(self.ways))

    def _sent(self, layer: int | None) -> tuple[int, ...]:
        """By way, the rows that it reads of this way in one slot."""
        return tuple(self._read(layer, way, self.way) for way in range(self.ways))

    def _read(self, layer: int | None, reader: int, owner: int) -> int:
        """Rows that one way reads of another in one slot; a row that several of its parts read counts once.

        The parts are assumed to read random rows.
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
    """Even shares of a total; a smaller total has no larger share."""
    return [total // shares + (index < total % shares) for index in range(shares)]
