"""A rank's place in a pipeline, and the chunks, inputs and targets of its stage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.exchange import Channel, Clock, RowFacts, Sides, Wires
from fullgraph.nn.view import Features
from fullgraph.placement.known import Known
from fullgraph.placement.pipeline.rows import Chunk, Span
from fullgraph.placement.view import RankView
from fullgraph.plan import HopRoute
from fullgraph.transport import SubTransport, Transport

if TYPE_CHECKING:
    from fullgraph.placement.pipeline.placement import Pipeline

CHUNKS = 4  # per stage, unless the run gives a number


class Setup(ABC):
    """A rank's place among stages and ways; subclasses make the chunks from rows or from counts."""

    def __init__(self, placement: "Pipeline", view: RankView, wire: Wires, clock: Clock) -> None:
        self.placement, self.view, self.wire, self.clock = placement, view, wire, clock
        self.transport: Transport = view.transport
        self.mesh = placement.mesh(self.transport.size)
        self.stages, self.ways = self.mesh.sizes["stage"], self.mesh.sizes["way"]
        place = self.mesh.at(self.transport.rank)
        self.stage, self.way = place["stage"], place["way"]
        self.slots = placement.chunks or CHUNKS * self.stages

    span: Span  # the numbers of this way's rows
    ids: Tensor  # [N] ids of all nodes
    attends: bool
    device: torch.device  # the device of the rows
    trimmed: Sequence[int]  # the layers that do not compute all rows
    computed: Mapping[int, int]  # rows of all ranks, by layer that does not compute all

    @abstractmethod
    def chunks(self, layer: int | None = None) -> list[Chunk]:
        """The chunks as a layer reads and computes them; None: with all rows."""

    @abstractmethod
    def computed_rows(self, layer: int | None) -> list[int]:
        """By chunk of this way, the number of rows that a layer computes; None: all rows."""

    @abstractmethod
    def arc_share(self, layer: int) -> float:
        """The share of this way's arcs that end in rows that the layer computes."""

    def rows_after(self, layer: int) -> list[int]:
        """By chunk, the number of rows after a layer, which may be a dense one."""
        return self.computed_rows(max((trimmed for trimmed in self.trimmed if trimmed <= layer), default=None))

    def shares(self, layer: int) -> tuple[float, float]:
        """The shares of all rows and of all arcs that a layer works on."""
        rows, everything = sum(self.rows_after(layer)), sum(self.computed_rows(None))
        return rows / max(1, everything), self.arc_share(layer) if layer in self.trimmed else 1.0

    @abstractmethod
    def inputs(self, chunks: list[Chunk]) -> list[tuple[Features, Known | None]]:
        """By chunk, the features and their precomputed aggregation; only on the first stage."""

    @abstractmethod
    def targets(self, chunks: list[Chunk]) -> list[tuple[Tensor, Tensor]]:
        """By chunk, the training rows and their labels; only on the last stage."""

    @cached_property
    def halos(self) -> Transport:
        """The ways of this stage."""
        lane = self.transport.fork() if self.ways > 1 else self.transport
        return SubTransport(lane, self.mesh.along("way", self.transport.rank))

    @cached_property
    def lanes(self) -> list[Transport]:
        """A transport per border; a stage's two borders never share one."""
        return [self.transport.fork() for _ in range(min(2, self.stages - 1))]

    def halo_channel(self, layer: int, chunk: Chunk) -> Channel:
        """The channel that brings the rows of other ways that a layer reads for a chunk."""
        return self.wire.at(layer).build(
            name=f"halo/layer{layer}/chunk{chunk.index}",
            route=chunk.route,
            transport=self.halos,
            clock=self.clock,
            facts=RowFacts(ids=Sides(chunk.ids, chunk.halo_ids), grades=chunk.grades, summed=not self.attends),
        )

    def hop_channel(self, border: int, chunk: Chunk, rows: int) -> Channel:
        """The channel that carries `rows` rows of a chunk from stage `border` to the next."""
        ranks = [self.mesh.rank(stage=stage, way=self.way) for stage in (border, border + 1)]
        pair = SubTransport(self.lanes[border % 2], ranks)
        grades = None if chunk.grades is None else chunk.grades.owned[:rows]
        return self.placement.hop.at(border).build(
            name=f"hops/{border}/chunk{chunk.index}",
            route=HopRoute(pair.rank, rows),
            transport=pair,
            clock=self.clock,
            facts=RowFacts(grades=None if grades is None else Sides(grades, grades)),
        )
