"""fullgraph: train graph neural networks on the whole graph, without sampling, across many workers."""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if "RANK" in os.environ:
    # A rank reports a lost peer in one line; torch's C++ would log more. Torch reads this setting when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

from fullgraph.version import __version__ as __version__

if TYPE_CHECKING:  # the same names, for type checkers
    from fullgraph import nn as nn
    from fullgraph import recipes as recipes
    from fullgraph import tasks as tasks
    from fullgraph.api import FinishedRun as FinishedRun
    from fullgraph.api import open_shard as open_shard
    from fullgraph.api import resume as resume
    from fullgraph.api import train as train
    from fullgraph.data import Graph as Graph
    from fullgraph.data import TypedGraph as TypedGraph
    from fullgraph.data import load as load
    from fullgraph.data import load_typed as load_typed
    from fullgraph.data import save_npz as save_npz
    from fullgraph.errors import InputError as InputError
    from fullgraph.exchange import Wire as Wire
    from fullgraph.own_model import checkpoint_context as checkpoint_context
    from fullgraph.own_model import distribute as distribute
    from fullgraph.own_model import evaluate as evaluate
    from fullgraph.own_model import gather_rows as gather_rows
    from fullgraph.own_model import max_over_nodes as max_over_nodes
    from fullgraph.own_model import mean_loss as mean_loss
    from fullgraph.own_model import mean_over_nodes as mean_over_nodes
    from fullgraph.own_model import sum_over_nodes as sum_over_nodes
    from fullgraph.own_model import sync_gradients as sync_gradients
    from fullgraph.predicting import Predictions as Predictions
    from fullgraph.predicting import predict as predict
    from fullgraph.run import Run as Run
    from fullgraph.train.config import TrainConfig as TrainConfig
    from fullgraph.train.sync import GradSync as GradSync

# The public names of each module. A name is imported at its first use: a launcher or `--help` needs few of them.
_NAMES = {
    "fullgraph": ("nn", "recipes", "tasks"),
    "fullgraph.api": ("FinishedRun", "open_shard", "resume", "train"),
    "fullgraph.data": ("Graph", "TypedGraph", "load", "load_typed", "save_npz"),
    "fullgraph.errors": ("InputError",),
    "fullgraph.exchange": ("Wire",),
    "fullgraph.own_model": (
        "checkpoint_context", "distribute", "evaluate", "gather_rows", "max_over_nodes", "mean_loss", "mean_over_nodes",
        "sum_over_nodes", "sync_gradients",
    ),
    "fullgraph.predicting": ("Predictions", "predict"),
    "fullgraph.run": ("Run",),
    "fullgraph.train.config": ("TrainConfig",),
    "fullgraph.train.sync": ("GradSync",),
}  # fmt: skip
_PLACES = {name: place for place, names in _NAMES.items() for name in names}


class _Package(ModuleType):
    """Keeps `fullgraph.train` the function, even after an import from the folder of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "train" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fullgraph' has no attribute {name!r}")
    place = _PLACES[name]
    if place == __name__:
        return importlib.import_module(f"{place}.{name}")
    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


__all__ = sorted(["__version__", *_PLACES])
