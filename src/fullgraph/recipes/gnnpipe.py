"""GNNPipe: each rank has some layers, and chunks of the graph pass from rank to rank (arXiv:2308.10087)."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import AnyCodec, Full
from fullgraph.errors import InputError
from fullgraph.exchange import AnySchedule, Steady, Sync, Wire
from fullgraph.placement import History, Pipeline
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf, Range


@dataclass(frozen=True, kw_only=True)
class GNNPipe(Strategy):
    """Every rank trains some layers; chunks of the graph pass from rank to rank (0: four chunks per stage).

    shuffle: a new order of chunks in every step. freeze: for this many steps, chunks that are not computed yet are read
    from one snapshot. gradients: what historical rows get: none, while fresh rows count twice ("double") or once
    ("none"), or the gradients of the last step ("last", the authors' code without their third technique).
    late_snapshots, dropped_history: take snapshots as that code does: first after step freeze - 1, and after dropout.
    cut: the first layer of every rank but the first, such as 3,6 (a deep model's encoder is layer 0); if empty, layers
    are balanced by count, or with `measure` by a measurement, which is written to the run's config. exact_from: the
    share of epochs after which training is exact, by parts as in `vanilla` (0.8: the last fifth is exact; 1: none).
    codec, schedule and their options: between stages, as in `free`.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("schedule", "halo_schedule"):
            if isinstance(getattr(self, name, None), Steady):
                raise InputError(f"{name}=steady measures whole layers, and rows cross in chunks here; use bounded")

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
    """Stages of several ranks (`ways`), which share the nodes and exchange halo rows of the current chunks.

    ways, stages: give one of them; the default is two ways. halo_codec, halo_schedule and their options, such as
    halo_bits: between the ways of a stage. The other options are those of `gnnpipe`.
    """

    ways: int = 0
    stages: int = 0
    halo_codec: AnyCodec = Full()
    halo_schedule: AnySchedule = Sync()

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(schedule=self.halo_schedule, codec=self.halo_codec)

    def layout(self) -> Pipeline:
        return self._pipeline(ways=self.ways or (0 if self.stages else 2), stages=self.stages)
