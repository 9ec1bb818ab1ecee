"""Any point of the axes: a schedule, a codec, a codec for gradients, smoothing, error feedback."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fullgraph.codec import BFloat16, Codec, Full, Half, LowBit, Subsample
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Pipelined, Schedule, Skip, Sync, Wire
from fullgraph.recipes.base import Recipe
from fullgraph.recipes.mixgcn import mixgcn
from fullgraph.recipes.pipegcn import averaging

T = TypeVar("T")


def free(
    schedule: str = "pipelined", lag: int = 1, warm_up: str = "zeros", refresh: int = 10, every: int = 2,
    codec: str = "lowbit", backward: str = "", bits: int = 1, ratio: float = 4.0,
    smooth: str = "", gamma: float = 0.95, correct: bool = False, feedback: bool = False,
    placement: str = "partitioned",
) -> Recipe:  # fmt: skip
    """Any combination: `schedule` sync, pipelined, bounded or skip, `codec` (and `backward`) full to subsample.

    placement: partitioned, or mixture, whose tiles then cross so; `gnnpipe` and its hybrid have wires of their own.
    """
    options = dict(locals())
    wire = Wire(
        schedule=schedule_named(schedule, lag=lag, warm_up=warm_up, refresh=refresh, every=every),
        codec=codec_named("codec", codec, bits=bits, ratio=ratio),
        backward=codec_named("backward", backward, bits=bits, ratio=ratio) if backward else None,
        smooth=averaging(smooth, gamma, correct),
        feedback=feedback,
    )
    placements: dict[str, Callable[[], Recipe]] = {"partitioned": lambda: Recipe(name=""), "mixture": mixgcn}
    laid = _named("placement", placement, placements)
    return replace(laid, name="free", options=options, wire=wire, narrow_first=False)


def schedule_named(
    name: str, *, lag: int = 1, warm_up: str = "zeros", refresh: int = 10, every: int = 2, option: str = "schedule"
) -> Schedule:
    schedules: dict[str, Callable[[], Schedule]] = {
        "sync": Sync,
        "pipelined": lambda: Pipelined(lag, warm_up),
        "bounded": lambda: Bounded(refresh),
        "skip": lambda: Skip(every),
    }
    return _named(option, name, schedules)


def codec_named(option: str, name: str, *, bits: int = 1, ratio: float = 4.0) -> Codec:
    codecs: dict[str, Callable[[], Codec]] = {
        "full": Full,
        "half": Half,
        "bf16": BFloat16,
        "lowbit": lambda: LowBit(bits),
        "subsample": lambda: Subsample(ratio),
    }
    return _named(option, name, codecs)


def _named(option: str, name: str, made: dict[str, Callable[[], T]]) -> T:
    if name not in made:
        raise InputError(f"{option} {name!r} is unknown; known: {', '.join(made)}")
    return made[name]()
