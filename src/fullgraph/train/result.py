"""result.json, schema 1."""

import platform
from typing import Any, NamedTuple

import numpy as np
import torch

from fullgraph.partition import Manifest
from fullgraph.report import EpochRecord, medians
from fullgraph.train.config import RunConfig
from fullgraph.train.task import Task
from fullgraph.train.trainer import Best
from fullgraph.version import __version__


class Cost(NamedTuple):
    """What a run took, of the worst rank."""

    peak_memory_bytes: int
    peak_device_bytes: int
    checkpoint_s: float  # that training stood still for checkpoints
    startup_s: dict[str, float]  # by phase


def result_of(
    config: RunConfig, manifest: Manifest, task: Task, best: Best, records: list[EpochRecord], cost: Cost
) -> dict[str, Any]:
    """Scores are those of the best validation epoch, by exact evaluation on the whole graph."""
    graph, figures = manifest.graph, manifest.figures
    return {
        "schema": 1,
        "strategy": config.strategy["name"],
        "model": config.model["name"],
        "graph": {
            "name": graph.name,
            "nodes": graph.nodes,
            "edges": graph.arcs,
            "features": graph.features,
            "classes": graph.classes,
        },
        "ranks": manifest.parts,
        "epochs": len(records),
        "seed": config.train.seed,
        "metric": task.metric_name,
        "best_epoch": best.epoch,
        **best.scores,
        "final_loss": records[-1].loss,
        "precision": config.train.precision if config.train.dtype == "float32" else "fp64",
        **medians(records),
        "bytes_total": sum(record.bytes for record in records),
        **cost._asdict(),
        "time_to_best_s": sum(record.epoch_s for record in records[: best.epoch + 1]),
        "partition": {
            "method": manifest.method,
            **{name: getattr(figures, name) for name in ("edge_cut", "halo_rows", "edge_imbalance", "node_imbalance")},
        },
        "versions": {
            "fullgraph": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
