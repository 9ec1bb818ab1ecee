"""Any point of the axes: a schedule, a codec, a codec for gradients, smoothing, error feedback."""

from fullgraph.codec import BFloat16, Codec, Full, Half, LowBit, Subsample
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Pipelined, Schedule, Skip, Sync, Wire
from fullgraph.recipes.base import Recipe
from fullgraph.recipes.pipegcn import averaging


def free(
    schedule: str = "pipelined", lag: int = 1, warm_up: str = "zeros", refresh: int = 10, every: int = 2,
    codec: str = "lowbit", backward: str = "", bits: int = 1, ratio: float = 4.0,
    smooth: str = "", gamma: float = 0.95, correct: bool = False, feedback: bool = False,
) -> Recipe:  # fmt: skip
    """Any combination: `schedule` sync, pipelined, bounded or skip, `codec` (and `backward`) full to subsample."""
    options = dict(locals())
    schedules: dict[str, Schedule] = {
        "sync": Sync(),
        "pipelined": Pipelined(lag, warm_up),
        "bounded": Bounded(refresh),
        "skip": Skip(every),
    }
    codecs: dict[str, Codec] = {
        "full": Full(),
        "half": Half(),
        "bf16": BFloat16(),
        "lowbit": LowBit(bits),
        "subsample": Subsample(ratio),
    }
    _known("schedule", schedule, schedules)
    _known("codec", codec, codecs)
    if backward:
        _known("backward", backward, codecs)
    wire = Wire(
        schedule=schedules[schedule],
        codec=codecs[codec],
        backward=codecs[backward] if backward else None,
        smooth=averaging(smooth, gamma, correct),
        feedback=feedback,
    )
    return Recipe(name="free", options=options, wire=wire, narrow_first=False)


def _known(what: str, name: str, names: dict[str, Schedule] | dict[str, Codec]) -> None:
    if name not in names:
        raise InputError(f"{what} {name!r} is unknown; known: {', '.join(names)}")
