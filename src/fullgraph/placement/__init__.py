"""Placements: how ranks divide the work; each placement builds a shard."""

from fullgraph.placement.base import AllLayers, Placement
from fullgraph.placement.layer_plans import Crossing, Rules, plan_layers
from fullgraph.placement.mixture import Mixture
from fullgraph.placement.partitioned import Partitioned
from fullgraph.placement.pipeline import History, Pipeline
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.placement.shard import Executor, Loss, Shard, WholeStep
from fullgraph.placement.view import RankView

__all__ = [
    "AllLayers",
    "Crossing",
    "Executor",
    "History",
    "Loss",
    "Mixture",
    "Partitioned",
    "Pipeline",
    "Placement",
    "RankGraph",
    "RankView",
    "Rules",
    "Shard",
    "WholeStep",
    "plan_layers",
]
