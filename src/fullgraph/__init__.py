"""fullgraph: train graph neural networks on the whole graph, without sampling, across many workers."""

from fullgraph import nn, recipes
from fullgraph.api import Run, open_shard, train
from fullgraph.data import Graph, load, save_npz
from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.train.sync import GradSync
from fullgraph.version import __version__

__all__ = [
    "GradSync",
    "Graph",
    "InputError",
    "Run",
    "Wire",
    "__version__",
    "load",
    "nn",
    "open_shard",
    "recipes",
    "save_npz",
    "train",
]
