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
    from fullgraph.train.sync import GradSync as GradSync

# The module of each public name. A name is imported at its first use, because a launcher or `--help` needs few of them.
_PLACES = {
    "FinishedRun": "fullgraph.api",
    "GradSync": "fullgraph.train.sync",
    "Graph": "fullgraph.data",
    "InputError": "fullgraph.errors",
    "Run": "fullgraph.run",
    "Wire": "fullgraph.exchange",
    "checkpoint_context": "fullgraph.own_model",
    "distribute": "fullgraph.own_model",
    "evaluate": "fullgraph.own_model",
    "gather_rows": "fullgraph.own_model",
    "load": "fullgraph.data",
    "load_typed": "fullgraph.data",
    "max_over_nodes": "fullgraph.own_model",
    "mean_loss": "fullgraph.own_model",
    "mean_over_nodes": "fullgraph.own_model",
    "nn": "fullgraph",
    "open_shard": "fullgraph.api",
    "Predictions": "fullgraph.predicting",
    "predict": "fullgraph.predicting",
    "recipes": "fullgraph",
    "resume": "fullgraph.api",
    "save_npz": "fullgraph.data",
    "TypedGraph": "fullgraph.data",
    "sum_over_nodes": "fullgraph.own_model",
    "sync_gradients": "fullgraph.own_model",
    "tasks": "fullgraph",
    "train": "fullgraph.api",
}


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
