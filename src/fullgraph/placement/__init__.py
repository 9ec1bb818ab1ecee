"""How work is laid over ranks: each placement builds a shard."""

from fullgraph.placement.base import Placement
from fullgraph.placement.mixture import Mixture
from fullgraph.placement.partitioned import Partitioned
from fullgraph.placement.pipeline import History, Pipeline
from fullgraph.placement.shard import Executor, Loss, Rows, Shard, WholeStep

__all__ = [
    "Executor",
    "History",
    "Loss",
    "Mixture",
    "Partitioned",
    "Pipeline",
    "Placement",
    "Rows",
    "Shard",
    "WholeStep",
]
