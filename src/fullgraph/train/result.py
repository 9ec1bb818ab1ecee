"""result.json, schema 1."""

import platform
from typing import Any, NamedTuple

import numpy as np
import torch

from fullgraph.partition import Manifest
from fullgraph.report import medians
from fullgraph.tasks import TASKS, main_table, metric_name, smaller_is_better, task_for
from fullgraph.train.trainer import Trainer
from fullgraph.version import __version__


class Cost(NamedTuple):
    """The resources that a run used on its worst rank."""

    peak_memory_bytes: int
    peak_device_bytes: int
    checkpoint_s: float  # training time lost to checkpoints
    startup_s: dict[str, float]  # by phase
    live_rows: dict[str, int]  # nodes that a layer computes in training, for layers that do not compute all


def result_of(strategy: str, model: str, manifest: Manifest, trainer: Trainer, cost: Cost) -> dict[str, Any]:
    """Return the result. Scores are those of the best validation epoch, by exact evaluation on the whole graph."""
    graph, figures, config = manifest.graph, manifest.figures, trainer.config
    best, records, task = trainer.best, trainer.records, task_for(config.task, graph, cut=True)
    return {
        "schema": 1,
        "strategy": strategy,
        "model": model,
        "graph": {
            "name": graph.name,
            "nodes": graph.nodes,
            "edges": graph.arcs,
            "features": graph.features,
            "classes": graph.classes,
        },
        "ranks": manifest.parts,
        "epochs": len(records),
        "seed": config.seed,
        "task": TASKS.label(task),
        "predicts": main_table(task),
        "metric": metric_name(trainer.task),
        "smaller_is_better": smaller_is_better(trainer.task.metric),
        "best_epoch": best.epoch,
        **best.scores,
        "final_loss": records[-1].loss,
        "precision": config.precision if config.dtype == "float32" else "fp64",
        **medians(records),
        "bytes_total": sum(record.bytes for record in records),
        **cost._asdict(),
        "time_to_best_s": sum(record.epoch_s for record in records[: best.epoch]),
        "partition": {
            "method": manifest.method,
            **{name: getattr(figures, name) for name in ("edge_cut", "halo_rows", "edge_imbalance", "node_imbalance")},
        },
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the software that computes a run."""
    return {
        "fullgraph": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
