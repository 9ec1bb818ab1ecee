"""Any combination of schedule, codec, gradient codec, smoothing, feedback and row selection."""

from dataclasses import dataclass, replace
from typing import Annotated

from fullgraph.axes import PLACEMENTS
from fullgraph.codec import AnyCodec, LowBit
from fullgraph.errors import InputError
from fullgraph.exchange import AnySchedule, Drift, Pipelined, Wire
from fullgraph.partition import Contiguous
from fullgraph.placement import Mixture, Partitioned, Placement
from fullgraph.recipes.base import Published
from fullgraph.recipes.halos import GAMMA, averaging
from fullgraph.values import OneOf, Range


@dataclass(frozen=True, kw_only=True)
class Free(Published):
    """Any combination of a schedule, a codec (and another one `backward`), and a placement.

    Options of the schedule, the codec and the placement are options of `free`. share: the share of halo nodes that
    cross in a step, as in `bns`. turns: each halo node crosses once in this many steps, as in `cd-r`. bound, longest,
    bound_gradients: rows that hardly changed are not sent, as in `sancus`. A mixture applies the choice to all its
    tiles. `gnnpipe` and `gnnpipe-hybrid` have their own options for wires.
    """

    schedule: AnySchedule = Pipelined()
    codec: AnyCodec = LowBit()
    backward: AnyCodec | None = None
    smooth: Annotated[str, OneOf("", "f", "g", "gf")] = ""
    gamma: float = GAMMA
    correct: bool = False
    feedback: bool = False
    share: Annotated[float, Range(0, 1)] = 1.0
    turns: Annotated[int, Range(1, 10**9)] = 1
    bound: Annotated[float, Range(0, 1e9)] | None = None
    longest: Annotated[int, Range(0, 10**9)] = 0
    bound_gradients: bool = False
    placement: Annotated[Placement, PLACEMENTS] = Partitioned()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.placement, Mixture) and (self.share < 1 or self.turns > 1 or self.bound is not None):
            raise InputError("share, turns and bound are for halo rows, and a mixture has no halo; leave them out")
        if (self.cover or self.by_host) and not isinstance(self.placement, Partitioned):
            name = "cover" if self.cover else "by_host"
            raise InputError(f"{name} is for halo rows, and a mixture has no halo; leave it out")

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(
            schedule=self.schedule,
            codec=self.codec,
            backward=self.backward,
            smooth=averaging(self.smooth, self.gamma, self.correct),
            feedback=self.feedback,
            share=self.share,
            turns=self.turns,
            drift=self._drift(),
        )

    def _drift(self) -> Drift | None:
        if self.bound is None:
            if self.longest or self.bound_gradients:
                raise InputError(
                    "longest and bound_gradients say how rows are skipped; add -o bound=0.3, or leave them out"
                )
            return None
        return Drift(bound=self.bound, longest=self.longest, gradients=self.bound_gradients)

    def layout(self) -> Placement:
        placement = replace(self.placement, sends="narrow" if self.narrow else "input")
        if not isinstance(placement, Partitioned):
            return placement
        return replace(placement, cover=self.cover, by_host=self.by_host)

    def partitioner(self) -> Contiguous | None:
        return Contiguous() if isinstance(self.placement, Mixture) else None
