"""A rank's place in a pipeline and the step that it runs there, whatever its chunks are made from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wires
from fullgraph.nn.view import Features
from fullgraph.placement.known import Known
from fullgraph.placement.pipeline.rows import Chunk, LiveRows, Span, StageRows
from fullgraph.placement.pipeline.stages import Border, PipelineStep
from fullgraph.placement.pipeline.view import ChunkView
from fullgraph.placement.view import RankView
from fullgraph.plan import HopRoute
from fullgraph.transport import SubTransport, Transport

if TYPE_CHECKING:
    from fullgraph.placement.pipeline.placement import Pipeline

CHUNKS = 4  # for each stage, unless the run says how many


class Setup(ABC):
    """A rank's place among stages and ways, and the step that it runs there; a source of chunks fills it."""

    step_kind: Callable[..., PipelineStep] = PipelineStep

    def __init__(self, placement: "Pipeline", view: RankView, wire: Wires, clock: Clock) -> None:
        self.placement, self.view, self.wire, self.clock = placement, view, wire, clock
        self.transport: Transport = view.transport
        self.mesh = placement.mesh(self.transport.size)
        self.stages, self.ways = self.mesh.sizes["stage"], self.mesh.sizes["way"]
        place = self.mesh.at(self.transport.rank)
        self.stage, self.way = place["stage"], place["way"]
        self.slots = placement.chunks or CHUNKS * self.stages

    span: Span  # the numbers of this way's rows
    attends: bool
    device: torch.device  # of the rows
    computed: Mapping[int, int]  # by layer: rows of all ranks, where those are not all

    @abstractmethod
    def ids(self) -> Tensor:
        """The ids [N] of all nodes."""

    @abstractmethod
    def chunks(self, layer: int | None = None) -> list[Chunk]:
        """The chunks as a layer sees them; None: as layers do that compute all rows."""

    @abstractmethod
    def live_rows(self) -> LiveRows:
        """How many rows of this way's chunks each layer computes."""

    @abstractmethod
    def inputs(self, chunks: list[Chunk], stage: int) -> list[tuple[Features, Known | None]]:
        """By chunk: features, and what is known of their aggregation; on the first stage."""

    @abstractmethod
    def targets(self, chunks: list[Chunk], stage: int) -> list[tuple[Tensor, Tensor]]:
        """By chunk: training rows, and their labels; on the last stage."""

    @cached_property
    def halos(self) -> Transport:
        """The ways of this stage."""
        lane = self.transport.fork() if self.ways > 1 else self.transport
        return SubTransport(lane, self.mesh.along("way", self.transport.rank))

    @cached_property
    def lanes(self) -> list[Transport]:
        """A border has a lane, and a stage's two borders never the same."""
        return [self.transport.fork() for _ in range(min(2, self.stages - 1))]

    def executor(self, stage: int | None = None, **more: Any) -> PipelineStep:
        """The step of a stage, this rank's own (None) or another one of its way."""
        placement, stage = self.placement, self.stage if stage is None else stage
        halos, _ = self.halos, self.lanes
        chunks = self.chunks()
        rows = StageRows(
            num_nodes=self.view.num_nodes,
            way=self.span,
            ids=self.ids(),
            transport=halos,
            clock=self.clock,
            rules=placement.rules,
            computed=self.computed,
            history=placement.history,
            single=self.slots == 1,
            channel_of=self._channel,
            live=self.live_rows(),
            chunks_of=self.chunks,
        )
        given = self.inputs(chunks, stage)
        known = [of for _, of in given] if given else [None] * len(chunks)
        return self.step_kind(
            stage=stage,
            stages=self.stages,
            transport=self.transport,
            rows=rows,
            parts=self.view,
            chunks=chunks,
            views=[ChunkView(stage=rows, chunk=c, known=k) for c, k in zip(chunks, known, strict=True)],
            below=self._border(stage - 1) if stage else None,
            above=self._border(stage) if stage < self.stages - 1 else None,
            inputs=[x for x, _ in given],
            targets=self.targets(chunks, stage),
            count=self.view.counts["train"],
            like=torch.empty(0, dtype=placement.dtype, device=self.device),
            shuffle=placement.shuffle,
            seed=placement.seed,
            cut=placement.cut,
            measure=placement.measure,
            **more,
        )

    def _channel(self, layer: int, chunk: Chunk) -> Channel:
        return self.wire.at(layer).build(
            name=f"halo/layer{layer}/chunk{chunk.index}",
            route=chunk.route,
            transport=self.halos,
            clock=self.clock,
            facts=RowFacts(ids=Sides(chunk.ids, chunk.halo_ids), grades=chunk.grades, summed=not self.attends),
        )

    def _border(self, border: int) -> Border:
        """Between stage `border` and the next."""
        ranks = [self.mesh.rank(stage=stage, way=self.way) for stage in (border, border + 1)]
        pair = SubTransport(self.lanes[border % 2], ranks) if self.transport.rank in ranks else None

        def channel_of(chunk: Chunk, rows: int) -> Channel:
            assert pair is not None, "a stage that is asked for its widths alone sends nothing"
            grades = None if chunk.grades is None else chunk.grades.owned[:rows]
            return self.placement.hop.at(border).build(
                name=f"hops/{border}/chunk{chunk.index}",
                route=HopRoute(pair.rank, rows),
                transport=pair,
                clock=self.clock,
                facts=RowFacts(grades=None if grades is None else Sides(grades, grades)),
            )

        return Border(channel_of=channel_of)
