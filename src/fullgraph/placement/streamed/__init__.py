"""Layers in parts: a rank's rows in stores, in memory or in files, and a step that brings one part at a time."""

from fullgraph.placement.streamed.memory import MemoryLine, MemoryPlan
from fullgraph.placement.streamed.placement import memory_plan, streamed_shard, why_not

__all__ = ["MemoryLine", "MemoryPlan", "memory_plan", "streamed_shard", "why_not"]
