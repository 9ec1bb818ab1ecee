"""How many bits: what a row becomes on the wire."""

from typing import Annotated

from fullgraph.axes import CODECS
from fullgraph.codec.base import BFloat16, Codec, Full, Half, Shape
from fullgraph.codec.byrow import ByRow
from fullgraph.codec.graded import Graded, quartiles
from fullgraph.codec.lowbit import LowBit
from fullgraph.codec.rate import Constant, Exponential, Linear, RateSchedule, Step
from fullgraph.codec.subsample import Subsample
from fullgraph.codec.variance import MinVariance

AnyCodec = Annotated[Codec, CODECS]

__all__ = [
    "CODECS",
    "AnyCodec",
    "BFloat16",
    "ByRow",
    "Codec",
    "Constant",
    "Exponential",
    "Full",
    "Graded",
    "Half",
    "Linear",
    "LowBit",
    "MinVariance",
    "RateSchedule",
    "Shape",
    "Step",
    "Subsample",
    "quartiles",
]
