"""How work is laid over ranks: each placement builds a shard."""

from fullgraph.placement.base import Placement
from fullgraph.placement.layer_plans import Crossing, Rules, plan_layers
from fullgraph.placement.mixture import Mixture
from fullgraph.placement.partitioned import Partitioned
from fullgraph.placement.pipeline import History, Pipeline
from fullgraph.placement.shard import Executor, Loss, Rows, Shard, WholeStep

__all__ = [
    "Crossing",
    "Executor",
    "History",
    "Loss",
    "Mixture",
    "Partitioned",
    "Pipeline",
    "Placement",
    "Rows",
    "Rules",
    "Shard",
    "WholeStep",
    "plan_layers",
]
