"""A user's own model: any module that is called as PyG's are, on one rank's rows."""

from fullgraph.own_model.loop import evaluate, gather_rows, mean_loss, sync_gradients
from fullgraph.own_model.mode import checkpoint_context
from fullgraph.own_model.module import Distributed, distribute

__all__ = ["Distributed", "checkpoint_context", "distribute", "evaluate", "gather_rows", "mean_loss", "sync_gradients"]
