"""GNNPipe: layers over stages, chunks of the graph in time (arXiv:2308.10087); hybrid, several ways a stage."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import AnyCodec, Full
from fullgraph.exchange import AnySchedule, Sync, Wire
from fullgraph.placement import History, Pipeline
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf, Range


@dataclass(frozen=True, kw_only=True)
class GNNPipe(Strategy):
    """Every rank trains some layers; chunks of the graph pass from rank to rank (0: four for each stage).

    shuffle: their order, every step. freeze: steps for which the rows of chunks to come are a snapshot's. gradients:
    historical rows get none, and fresh ones count twice for it ("double"), or do not ("none"); or they get those of the
    last step ("last", the authors' code without their third technique). late_snapshots, dropped_history: snapshots as
    that code takes them, first after step freeze - 1, and after dropout. cut: the first layer of each rank
    but the first, such as 3,6 (a deep model's encoder is layer 0); if empty, ranks get the same work by count, or by
    a measurement with `measure`, whose result is written to the run's config. exact_from: of the epochs, from which
    share on they are exact, by parts as in `vanilla` (0.8: the last fifth; 1: none). codec, schedule and their options:
    between stages, as in `free`.
    """

    chunks: int = 0
    shuffle: bool = True
    freeze: int = 23
    gradients: Annotated[str, OneOf("double", "last", "none")] = "double"
    late_snapshots: bool = False
    dropped_history: bool = False
    cut: tuple[int, ...] = ()
    measure: bool = False
    exact_from: Annotated[float, Range(0, 1)] = 1.0
    codec: AnyCodec = Full()
    schedule: AnySchedule = Sync()

    def layout(self) -> Pipeline:
        return self._pipeline(ways=1, stages=0)

    def _pipeline(self, *, ways: int, stages: int) -> Pipeline:
        return Pipeline(
            ways=ways,
            stages=stages,
            chunks=self.chunks,
            shuffle=self.shuffle,
            history=History(self.freeze, self.late_snapshots, self.dropped_history, self.gradients),
            cut=self.cut,
            measure=self.measure,
            exact_from=self.exact_from,
            hop=Wire(schedule=self.schedule, codec=self.codec),
            sends="input",
        )


@dataclass(frozen=True, kw_only=True)
class GNNPipeHybrid(GNNPipe):
    """Stages of several ranks (`ways`), which share the nodes and exchange halos of the chunks they work on.

    ways, stages: give one of them; two ways if neither. halo_codec, halo_schedule and their options, such as halo_bits:
    between the ways of a stage. The rest as in `gnnpipe`.
    """

    ways: int = 0
    stages: int = 0
    halo_codec: AnyCodec = Full()
    halo_schedule: AnySchedule = Sync()

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(schedule=self.halo_schedule, codec=self.halo_codec)

    def layout(self) -> Pipeline:
        return self._pipeline(ways=self.ways or (0 if self.stages else 2), stages=self.stages)
