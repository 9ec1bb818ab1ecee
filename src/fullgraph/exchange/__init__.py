"""When rows are read: channels, schedules, smoothing, and the two mirrored autograd functions."""

from typing import Annotated

from fullgraph.axes import SCHEDULES
from fullgraph.exchange.adaptive import Adaptive
from fullgraph.exchange.channel import Channel, Hop
from fullgraph.exchange.clock import Clock
from fullgraph.exchange.inbox import Held, settled
from fullgraph.exchange.own import checked_schedule
from fullgraph.exchange.relay import HostChannel
from fullgraph.exchange.rows import RowFacts, Sides
from fullgraph.exchange.schedule import Bounded, Pipelined, Schedule, Skip, Sync, Turn, table
from fullgraph.exchange.state import Drift, Smooth
from fullgraph.exchange.wire import Builder, Except, Wire, Wires

AnySchedule = Annotated[Schedule, SCHEDULES]

__all__ = [
    "SCHEDULES",
    "Adaptive",
    "AnySchedule",
    "Bounded",
    "Builder",
    "Channel",
    "Clock",
    "Drift",
    "Except",
    "Held",
    "Hop",
    "HostChannel",
    "Pipelined",
    "RowFacts",
    "Schedule",
    "Sides",
    "Skip",
    "Smooth",
    "Sync",
    "Turn",
    "Wire",
    "Wires",
    "checked_schedule",
    "settled",
    "table",
]
