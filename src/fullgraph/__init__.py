"""fullgraph: train graph neural networks on the whole graph, without sampling, across many workers."""

import os

if "RANK" in os.environ:
    # A rank says in one line of its own what torch's C++ would log of a lost peer. Torch looks when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

from fullgraph import nn, recipes
from fullgraph.api import Run, open_shard, train
from fullgraph.data import Graph, load, save_npz
from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.own_model import checkpoint_context, distribute, evaluate, gather_rows, mean_loss, sync_gradients
from fullgraph.train.sync import GradSync
from fullgraph.version import __version__

__all__ = [
    "GradSync",
    "Graph",
    "InputError",
    "Run",
    "Wire",
    "__version__",
    "checkpoint_context",
    "distribute",
    "evaluate",
    "gather_rows",
    "load",
    "mean_loss",
    "nn",
    "open_shard",
    "recipes",
    "save_npz",
    "sync_gradients",
    "train",
]
