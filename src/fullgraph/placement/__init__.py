"""How work is laid over ranks: each placement builds a shard."""

from fullgraph.placement.partitioned import Partitioned, Placement
from fullgraph.placement.shard import Executor, Loss, Rows, Shard, WholeStep

__all__ = ["Executor", "Loss", "Partitioned", "Placement", "Rows", "Shard", "WholeStep"]
