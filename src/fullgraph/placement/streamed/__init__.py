"""Layers in parts: a rank's rows in stores, in memory or in files, and a step that brings one part at a time."""

from fullgraph.placement.streamed.memory import Planner
from fullgraph.placement.streamed.placement import planner_of, streamed_shard, why_not

__all__ = ["Planner", "planner_of", "streamed_shard", "why_not"]
