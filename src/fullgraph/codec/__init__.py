"""How many bits: what a row becomes on the wire."""

from fullgraph.codec.base import BFloat16, Codec, Full, Half, Shape
from fullgraph.codec.graded import Graded, quartiles
from fullgraph.codec.lowbit import LowBit
from fullgraph.codec.rate import Constant, Exponential, Linear, RateSchedule, Step
from fullgraph.codec.subsample import Subsample

CODECS: dict[str, type[Codec]] = {
    "full": Full,
    "half": Half,
    "bf16": BFloat16,
    "lowbit": LowBit,
    "subsample": Subsample,
}

__all__ = [
    "CODECS",
    "BFloat16",
    "Codec",
    "Constant",
    "Exponential",
    "Full",
    "Graded",
    "Half",
    "Linear",
    "LowBit",
    "RateSchedule",
    "Shape",
    "Step",
    "Subsample",
    "quartiles",
]
