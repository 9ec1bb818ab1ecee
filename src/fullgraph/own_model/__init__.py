"""A user's own model: any module that is called like a PyG model, run on one rank's rows."""

from fullgraph.own_model.loop import evaluate, gather_rows, mean_loss, sync_gradients
from fullgraph.own_model.module import Distributed, distribute
from fullgraph.own_model.over_nodes import max_over_nodes, mean_over_nodes, sum_over_nodes
from fullgraph.own_model.recomputed import checkpoint_context

__all__ = [
    "Distributed", "checkpoint_context", "distribute", "evaluate", "gather_rows", "max_over_nodes", "mean_loss",
    "mean_over_nodes", "sum_over_nodes", "sync_gradients",
]  # fmt: skip
