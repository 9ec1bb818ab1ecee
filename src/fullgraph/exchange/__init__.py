"""When is it read: channels, schedules, smoothing, and the two mirrored autograd functions."""

from fullgraph.exchange.channel import Channel, Clock, Wire
from fullgraph.exchange.schedule import Bounded, Pipelined, Schedule, Skip, Sync, Turn, table
from fullgraph.exchange.smooth import Smooth

SCHEDULES: dict[str, type[Schedule]] = {"sync": Sync, "pipelined": Pipelined, "bounded": Bounded, "skip": Skip}

__all__ = [
    "SCHEDULES",
    "Bounded",
    "Channel",
    "Clock",
    "Pipelined",
    "Schedule",
    "Skip",
    "Smooth",
    "Sync",
    "Turn",
    "Wire",
    "table",
]
