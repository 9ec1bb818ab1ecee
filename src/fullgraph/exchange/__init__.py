"""When is it read: channels, schedules, and the two mirrored autograd functions."""

from fullgraph.exchange.channel import Channel, Clock, Wire
from fullgraph.exchange.schedule import Schedule, Sync, Turn

__all__ = ["Channel", "Clock", "Schedule", "Sync", "Turn", "Wire"]
