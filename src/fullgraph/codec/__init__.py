"""Codecs: turn rows into bytes and back; the axis "how many bits"."""

from typing import Annotated

from fullgraph.axes import CODECS
from fullgraph.codec.base import BFloat16, Codec, Full, Half, Shape
from fullgraph.codec.byrow import ByRow
from fullgraph.codec.graded import Graded, quartiles
from fullgraph.codec.lowbit import LowBit
from fullgraph.codec.memory import ChannelFacts, Memory, Message
from fullgraph.codec.rate import Constant, Exponential, Linear, RateSchedule, Step
from fullgraph.codec.subsample import Subsample
from fullgraph.codec.variance import MinVariance

AnyCodec = Annotated[Codec, CODECS]

__all__ = [
    "CODECS",
    "AnyCodec",
    "BFloat16",
    "ByRow",
    "ChannelFacts",
    "Codec",
    "Constant",
    "Exponential",
    "Full",
    "Graded",
    "Half",
    "Linear",
    "LowBit",
    "Memory",
    "Message",
    "MinVariance",
    "RateSchedule",
    "Shape",
    "Step",
    "Subsample",
    "quartiles",
]
