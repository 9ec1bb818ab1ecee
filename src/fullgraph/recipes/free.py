"""Any point of the axes: a schedule, a codec, a codec for gradients, smoothing, error feedback."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.codec import AnyCodec, LowBit
from fullgraph.exchange import AnySchedule, Pipelined, Wire
from fullgraph.partition import Contiguous
from fullgraph.placement import Mixture, Partitioned, Placement
from fullgraph.recipes.base import Published
from fullgraph.recipes.pipegcn import averaging
from fullgraph.values import OneOf

PLACEMENTS: dict[str, type[Placement]] = {"partitioned": Partitioned, "mixture": Mixture}


@dataclass(frozen=True, kw_only=True)
class Free(Published):
    """Any combination: `schedule` sync, pipelined, bounded or skip, `codec` (and `backward`) full to subsample.

    Options of the schedule and the codec are options here. placement: partitioned, or mixture, whose tiles then cross
    so; `gnnpipe` and its hybrid have wires of their own.
    """

    schedule: AnySchedule = Pipelined()
    codec: AnyCodec = LowBit()
    backward: AnyCodec | None = None
    smooth: Annotated[str, OneOf("", "f", "g", "gf")] = ""
    gamma: float = 0.95
    correct: bool = False
    feedback: bool = False
    placement: Annotated[str, OneOf(*PLACEMENTS)] = "partitioned"

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(
            schedule=self.schedule,
            codec=self.codec,
            backward=self.backward,
            smooth=averaging(self.smooth, self.gamma, self.correct),
            feedback=self.feedback,
        )

    def layout(self) -> Placement:
        return PLACEMENTS[self.placement](narrow_first=self.narrow, input_ahead=True)

    def partitioner(self) -> Contiguous | None:
        return Contiguous() if self.placement == "mixture" else None
