"""How a pipeline is set up: nodes numbered by way and chunk, and every rank given what its stage needs.

Legend: N nodes, w of them this way's own, n this rank's part; W ways, K chunks a way, V levels, S stages.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.codec import quartiles
from fullgraph.errors import InputError
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wires
from fullgraph.nn.view import Features
from fullgraph.ops import Adjacency, Structure
from fullgraph.placement.channel_view import Known
from fullgraph.placement.holding.live import LEVELS, Live
from fullgraph.placement.holding.local import LocalGraph
from fullgraph.placement.holding.whole import whole_matrices
from fullgraph.placement.pipeline.live import LiveRows, Numbering, rows_kept
from fullgraph.placement.pipeline.rows import Chunk, Span, StageRows
from fullgraph.placement.pipeline.stages import Border, PipelineStep
from fullgraph.placement.pipeline.view import ChunkView
from fullgraph.placement.scene import Scene
from fullgraph.plan import HaloRoute, HopRoute
from fullgraph.transport import Key, SubTransport, Transport, gather_rows

if TYPE_CHECKING:
    from fullgraph.placement.pipeline.placement import Pipeline

CHUNKS = 4  # for each stage, unless the run says how many


class Setup:
    """Numbers the nodes by way and chunk, and hands every rank what its stage needs."""

    def __init__(
        self, placement: "Pipeline", scene: Scene, live: Live | None, wire: Wires, clock: Clock, aggregation: str
    ) -> None:
        """live: which rows of this part each layer computes; None: all."""
        self.placement, self.scene, self.wire, self.clock = placement, scene, wire, clock
        self.transport: Transport = scene.transport
        self.mesh = placement.mesh(self.transport.size)
        self.stages, self.ways = self.mesh.sizes["stage"], self.mesh.sizes["way"]
        place = self.mesh.at(self.transport.rank)
        self.stage, self.way = place["stage"], place["way"]
        self.slots = placement.chunks or CHUNKS * self.stages
        if placement.chunks > scene.num_nodes:
            raise InputError(f"chunks={placement.chunks}: more than the {scene.num_nodes} nodes; choose fewer, or 0")
        local = scene.local
        everywhere = Live(torch.zeros(len(local.ids), dtype=LEVELS), (None,) * len(placement.hops))
        self.live = live or everywhere
        self.numbers = self._numbers(local)
        self.starts = self.numbers.starts
        self.number_N = self._gather("numbers", self.numbers.number_n).long()  # in rank order
        self.ids_N = torch.empty_like(self.number_N).scatter_(0, self.number_N, self._gather("ids", local.ids))
        self.whole = whole_matrices(
            local, self.numbers.number_n, scene.num_nodes, self.transport, aggregation, placement.dtype, "stages"
        )

    @property
    def live_of_part(self) -> dict[int, int]:
        """By layer: how many rows of this rank's part are computed, where those are not all."""
        level_n, hops = self.live.level_n, enumerate(self.live.hops)
        return {layer: int((level_n <= hop).sum()) for layer, hop in hops if hop is not None}

    def _numbers(self, local: LocalGraph) -> Numbering:
        """The nodes by way, chunk and level. Levels cut no chunk: a layer computes the first rows of all chunks."""
        way, place = divmod(self.transport.rank, self.stages)
        first, last = place * self.slots // self.stages, (place + 1) * self.slots // self.stages
        if self.slots == 1:
            first, last = 0, 1
        pieces_n = self._pieces(local, last - first)
        levels = 2 + max((hop for hop in self.live.hops if hop is not None), default=-1)
        group_n = (pieces_n + first) * levels + self.live.level_n
        sizes = torch.zeros(self.ways, self.slots * levels, self.stages, dtype=torch.int64)
        sizes[way, :, place] = torch.bincount(group_n, minlength=self.slots * levels)
        sizes = self.transport.all_reduce(Key("setup/chunks", 0), sizes).wait()
        begin = (sizes.flatten().cumsum(0) - sizes.flatten()).view_as(sizes)
        order = torch.argsort(group_n, stable=True)
        within = torch.arange(len(order)) - torch.searchsorted(group_n[order], group_n[order])
        number_n = torch.empty_like(order)
        number_n[order] = begin[way, group_n[order], place] + within
        ends = begin[:, :1, 0] + sizes.sum((1, 2))[:, None]
        return Numbering(
            number_n=number_n.int(),
            starts=torch.cat([begin[:, ::levels, 0], ends], 1),
            near=sizes.sum(2).view(self.ways, self.slots, levels).cumsum(2),
            hops=self.live.hops,
        )

    def _pieces(self, local: LocalGraph, count: int) -> Tensor:
        """The piece of every row of this part. It does not depend on the order that the rows are in."""
        inner, order_n = local.arcs.keep(local.arcs.indices < len(local.ids)), torch.argsort(local.ids)
        if bool((local.ids.diff() < 0).any()):
            inner = inner.reordered(order_n)
        with self.transport.away("cutting its part into chunks"):
            pieces = self.placement.pieces(inner.indptr.numpy(), inner.indices.numpy(), count)
        return torch.empty_like(order_n).scatter_(0, order_n, torch.from_numpy(pieces).long())

    def _gather(self, what: str, values: Tensor, to: int | None = None) -> Tensor:
        """All ranks' rows in rank order, on all; or of a way's parts, on the ranks of stage `to` in that way."""

        def wants(receiver: int, sender: int) -> bool:
            place = self.mesh.at(receiver)
            return to is None or (place["stage"] == to and place["way"] == sender // self.stages)

        return gather_rows(values.cpu(), self.transport, Key(f"setup/stage {what}", 0), wants)

    def _features(self, what: str, x: Features) -> Features:
        """Input rows of the way, in its own order, on the first stage."""
        order = self._order()
        if isinstance(x, Tensor):
            rows = self._gather(what, x, to=0)
            return rows[order] if self.stage == 0 else rows
        assert x.weight is not None
        indptr = torch.nn.functional.pad(
            self._gather(f"{what} counts", x.structure.indptr.diff(), to=0).cumsum(0), (1, 0)
        )
        columns = self._gather(f"{what} columns", x.structure.indices, to=0)
        matrix = Adjacency(
            Structure(indptr, columns, x.structure.num_cols), self._gather(f"{what} values", x.weight, to=0), None, None
        )
        return matrix.take(order) if self.stage == 0 else matrix

    def _order(self) -> Tensor:
        """The rows of the way's parts, which come in rank order, in the order of their numbers."""
        own = (self.number_N >= self.span.first) & (self.number_N < self.span.last)
        return torch.argsort(self.number_N[own])

    @property
    def span(self) -> Span:
        return Span(int(self.starts[self.way, 0]), int(self.starts[self.way, -1]))

    def executor(self) -> PipelineStep:
        placement, transport, scene = self.placement, self.transport, self.scene
        device = placement.device
        halos = SubTransport(transport.fork() if self.ways > 1 else transport, self.mesh.along("way", transport.rank))
        # A border has a lane, and a stage's two borders never the same.
        lanes = [transport.fork() for _ in range(min(2, self.stages - 1))]
        chunks = self._chunks()

        def channel_of(layer: int, chunk: Chunk) -> Channel:
            return self.wire.at(layer).build(
                name=f"halo/layer{layer}/chunk{chunk.index}",
                route=chunk.route,
                transport=halos,
                clock=self.clock,
                facts=RowFacts(ids=Sides(chunk.ids, chunk.halo_ids), grades=chunk.grades, summed=not self._attends),
            )

        rows = StageRows(
            num_nodes=scene.num_nodes,
            way=self.span,
            ids=self.ids_N.to(device),
            transport=halos,
            clock=self.clock,
            narrow_first=placement.narrow_first,
            history=placement.history,
            single=self.slots == 1,
            channel_of=channel_of,
            live=self._live_rows(),
            chunks_of=self._chunks,
        )
        known, inputs = self._inputs(chunks)
        y = self._gather("labels", scene.local.y, to=self.stages - 1)
        train = self._gather("training", scene.local.masks["train"].to(torch.uint8), to=self.stages - 1).bool()
        targets = []
        if self.stage == self.stages - 1:
            order = self._order()
            y, train = y[order], train[order]
            for chunk in chunks:
                picked = train[chunk.local.rows].nonzero().flatten()
                targets.append((picked.to(device), y[chunk.local.rows][picked].to(device)))
        return PipelineStep(
            stage=self.stage,
            stages=self.stages,
            transport=transport,
            rows=rows,
            chunks=chunks,
            views=[ChunkView(stage=rows, chunk=c, known=k) for c, k in zip(chunks, known, strict=True)],
            below=self._border(self.stage - 1, lanes) if self.stage else None,
            above=self._border(self.stage, lanes) if self.stage < self.stages - 1 else None,
            inputs=inputs,
            targets=targets,
            count=scene.counts["train"],
            like=torch.empty(0, dtype=placement.dtype, device=device),
            shuffle=placement.shuffle,
            seed=placement.seed,
            cut=placement.cut,
            measure=placement.measure,
        )

    def _border(self, border: int, lanes: list[Transport]) -> Border:
        """Between stage `border` and the next."""
        ranks = [self.mesh.rank(stage=stage, way=self.way) for stage in (border, border + 1)]
        pair = SubTransport(lanes[border % 2], ranks)

        def channel_of(chunk: Chunk, rows: int) -> Channel:
            grades = None if chunk.grades is None else chunk.grades.owned[:rows]
            return self.placement.hop.at(border).build(
                name=f"hops/{border}/chunk{chunk.index}",
                route=HopRoute(pair.rank, rows),
                transport=pair,
                clock=self.clock,
                facts=RowFacts(grades=None if grades is None else Sides(grades, grades)),
            )

        return Border(channel_of=channel_of)

    def _inputs(self, chunks: list[Chunk]) -> tuple[list[Known | None], list[Features]]:
        """By chunk: features, and what is known of their aggregation."""
        x = self._features("features", self.scene.local.x)
        known = self.scene.known
        ahead = self._features("aggregated", known.aggregated) if isinstance(known, Known) else None
        if self.stage:
            return [None] * len(chunks), []
        device = self.placement.device
        inputs = [_rows(x, chunk.local, device) for chunk in chunks]
        if ahead is None:
            return [None] * len(chunks), inputs
        return [Known(rows, _rows(ahead, c.local, device)) for c, rows in zip(chunks, inputs, strict=True)], inputs

    def _chunks(self, layer: int | None = None) -> list[Chunk]:
        """The chunks as a layer sees them; None: as layers do that compute all rows."""
        device, own, numbers = self.placement.device, self.span, self.numbers
        read, computed = numbers.computed(None if layer is None else layer - 1), numbers.computed(layer)
        forward, arcs = self.whole.inner.span(*own), self.whole.arcs.span(*own)
        backward, grades = self._backward(layer), self._grades
        reads = [self._read_by(way, layer) for way in range(self.ways)] if self.ways > 1 else [self._nothing()]
        chunks = []
        for index in range(self.slots):
            bounds = [Span(first, first + rows) for first, rows in zip(
                self.starts[:, index].tolist(), read[:, index].tolist(), strict=True)]  # fmt: skip
            span = bounds[self.way]
            local = Span(span.first - own.first, span.first - own.first + int(computed[self.way, index]))
            halos, sends = [], []
            for way, other in enumerate(bounds):
                mine = way == self.way
                halos.append(reads[self.way][other.rows].nonzero().flatten()[: 0 if mine else None] + other.first)
                sends.append(reads[way][span.rows].nonzero().flatten()[: 0 if mine else None])
            halo = torch.cat(halos)
            route = HaloRoute(torch.cat(sends), tuple(map(len, sends)), tuple(map(len, halos)), len(span))
            chunks.append(
                Chunk(
                    index=index,
                    span=span,
                    local=local,
                    ids=self.ids_N[span.rows].to(device),
                    halo=halo.to(device),
                    halo_ids=self.ids_N[halo].to(device),
                    route=route.to(device),
                    forward=forward.span(*local).to(device=device),
                    backward=backward.span(*span).to(device=device),
                    backward_halo=backward.take(halo).to(device=device),
                    arcs=arcs.span(*local).to(device),
                    grades=None if grades is None else Sides(grades[span.rows].to(device), grades[halo].to(device)),
                )
            )
        return chunks

    def _backward(self, layer: int | None) -> Adjacency:
        """The transpose of the way's rows that a layer computes [N, w]."""
        if layer is None and self.ways == 1:
            return self.whole.inner.T  # which all ranks of a machine share
        forward = self.whole.inner.span(*self.span)
        return (forward if layer is None else rows_kept(forward, self.numbers.is_computed(self.way, layer))).T

    @cached_property
    def _grades(self) -> Tensor | None:
        """Of all nodes, by in-degree among them, if a wire asks for it."""
        if not (self.wire.graded or self.placement.hop.graded):
            return None
        degrees = self._pattern.indptr.diff()
        return quartiles(degrees, degrees)

    def _live_rows(self) -> LiveRows:
        """Of this way's chunks."""
        numbers, way = self.numbers, self.way
        degree_w = self._pattern.span(*self.span).indptr.diff()
        arcs = {layer: int(degree_w[numbers.is_computed(way, layer)].sum()) for layer in numbers.trimmed}
        return LiveRows(
            numbers.computed(None)[way].tolist(),
            {layer: numbers.computed(layer)[way].tolist() for layer in arcs},
            {layer: count / max(1, int(degree_w.sum())) for layer, count in arcs.items()},
        )

    @property
    def _attends(self) -> bool:
        return self.whole.arcs.num_arcs > 0

    @property
    def _pattern(self) -> Structure:
        """The arcs of all nodes."""
        return self.whole.arcs if self._attends else self.whole.inner.structure

    def _nothing(self) -> Tensor:
        return torch.zeros(self.scene.num_nodes, dtype=torch.bool)

    def _read_by(self, way: int, layer: int | None) -> Tensor:
        """Which nodes the arcs come from, of the rows of a way that a layer computes [N]."""
        arcs = self._pattern.span(int(self.starts[way, 0]), int(self.starts[way, -1]))
        chosen = torch.repeat_interleave(self.numbers.is_computed(way, layer), arcs.indptr.diff())
        return self._nothing().index_fill_(0, arcs.indices[chosen].long(), True)


def _rows(x: Features, span: Span, device: torch.device) -> Features:
    return x[span.rows].to(device) if isinstance(x, Tensor) else x.span(*span).to(device=device)
