"""fullgraph: train graph neural networks on the whole graph, without sampling, across many workers."""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if "RANK" in os.environ:
    # A rank says in one line of its own what torch's C++ would log of a lost peer. Torch looks when it is imported.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

from fullgraph.version import __version__

if TYPE_CHECKING:
    from fullgraph import nn, recipes, tasks
    from fullgraph.api import FinishedRun, open_shard, resume, train
    from fullgraph.data import Graph, load, save_npz
    from fullgraph.errors import InputError
    from fullgraph.exchange import Wire
    from fullgraph.own_model import (
        checkpoint_context,
        distribute,
        evaluate,
        gather_rows,
        max_over_nodes,
        mean_loss,
        mean_over_nodes,
        sum_over_nodes,
        sync_gradients,
    )
    from fullgraph.predicting import Predictions, predict
    from fullgraph.run import Run
    from fullgraph.train.sync import GradSync

# Where each name lies; it is imported when it is first asked for, since a launcher or `--help` needs next to nothing.
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
    "sum_over_nodes": "fullgraph.own_model",
    "sync_gradients": "fullgraph.own_model",
    "tasks": "fullgraph",
    "train": "fullgraph.api",
}


class _Package(ModuleType):
    """`fullgraph.train` is the function, also after someone imported from the folder of that name."""

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


__all__ = [
    "FinishedRun",
    "GradSync",
    "Graph",
    "InputError",
    "Predictions",
    "Run",
    "Wire",
    "__version__",
    "checkpoint_context",
    "distribute",
    "evaluate",
    "gather_rows",
    "load",
    "max_over_nodes",
    "mean_loss",
    "mean_over_nodes",
    "nn",
    "open_shard",
    "predict",
    "recipes",
    "resume",
    "save_npz",
    "sum_over_nodes",
    "sync_gradients",
    "tasks",
    "train",
]
