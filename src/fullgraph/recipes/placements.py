"""The published systems that lay the work over ranks in another way than by parts with halos.

MixGCN (arXiv:2501.01951), GNNPipe (arXiv:2308.10087).
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from fullgraph.codec import AnyCodec, Full
from fullgraph.errors import InputError
from fullgraph.exchange import AnySchedule, Sync, Wire
from fullgraph.partition import Banded, Contiguous
from fullgraph.placement import History, Mixture, Pipeline
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf, Range


@dataclass(frozen=True, kw_only=True)
class MixGCN(Strategy):
    """Exact training without halos: a machine holds the whole structure, and ranks swap row for column blocks.

    blocks: runs of rows, one of which is aggregated while the one before crosses and is updated. roles: what each rank
    does, such as sparse,dense,dense or both,both. devices: where, such as cpu,cuda:0,cuda:1; cpu+cuda:0 is a rank that
    aggregates on the first and updates on the second.
    """

    blocks: Annotated[int, Range(1, 2**31)] = 1
    roles: tuple[Annotated[str, OneOf("sparse", "dense", "both")], ...] = ()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for needed, work in (("sparse", "aggregate"), ("dense", "update")):
            if self.roles and not {needed, "both"} & set(self.roles):
                raise InputError(f"roles={','.join(self.roles)}: no rank to {work}; make one {needed} or both")

    def layout(self) -> Mixture:
        aggregate_on = tuple(_devices(text)[0] for text in self.devices)
        return Mixture(blocks=self.blocks, roles=self.roles, aggregate_on=aggregate_on)

    def partitioner(self) -> Banded | Contiguous:
        empty = tuple(rank for rank, role in enumerate(self.roles) if role == "sparse")
        return Banded(blocks=self.blocks, empty=empty) if self.blocks > 1 or empty else Contiguous()

    def devices_of(self, rank: int) -> tuple[str, ...]:
        return _devices(self.devices[rank])[::-1] if self.devices else ()


def _devices(text: str) -> tuple[str, str]:
    """Of a rank's sparse and of its dense work."""
    try:
        names = [str(torch.device(name)) for name in text.split("+")]
    except RuntimeError:
        names = []
    if len(names) not in (1, 2) or not all(name == "cpu" or name.startswith("cuda:") for name in names):
        raise InputError(f"device {text!r} is unknown; write cpu, cuda:0, or both as cpu+cuda:0")
    return names[0], names[-1]


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
