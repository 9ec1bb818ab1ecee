"""Predict with a finished run, for its own graph or another one; also writes any layer's rows, with the user's node
ids.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.cutting import cut, write_shards
from fullgraph.data import FeatureScaler, Graph, TypedGraph, as_any_graph, as_graph
from fullgraph.data.typed.schema import like
from fullgraph.display import shown
from fullgraph.errors import InputError
from fullgraph.own_code import in_users_frames
from fullgraph.partition import GraphFacts, Metis, read_manifest, read_names, read_scaler
from fullgraph.report import Phases
from fullgraph.report.terminal import note
from fullgraph.resources import require_ranks
from fullgraph.run import Run, require_device
from fullgraph.storage import FolderLock, scratch
from fullgraph.tasks import Predicted, TaskSpec, predicted_by
from fullgraph.train.folder import check_names
from fullgraph.train.fork_server import ForkServer
from fullgraph.train.launch import launch
from fullgraph.train.predict import Order, arrays_of, check_format, export, files_of
from fullgraph.worker import model_file


@dataclass(frozen=True)
class Predictions:
    """The written tables: one row per node, in the graph's node order.

    Each array is an attribute: `classes` [N], `probabilities` [N, C], `values`, `scores` and `pairs`, `embeddings`
    [N, D], `labels` [C], or the tables that a user's own task declares.
    """

    folder: Path
    files: tuple[Path, ...]
    tables: tuple[Predicted, ...]

    @property
    def ids(self) -> np.ndarray[Any, Any]:
        """The user's name of each node; without names, its number."""
        if self.folder / "ids.npy" in self.files:
            return self.table("ids")
        of_nodes = [self.folder / f"{table.name}.npy" for table in self.tables if table.of == "nodes"]
        return np.arange(len(np.load(next(file for file in of_nodes if file in self.files), mmap_mode="r")))

    def table(self, name: str) -> np.ndarray[Any, Any]:
        path = self.folder / f"{name}.npy"
        if path not in self.files:
            raise InputError(f"{name}.npy was not written; these were: {', '.join(file.name for file in self.files)}")
        return np.load(path)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> np.ndarray[Any, Any]:
        if name.startswith("_") or name in ("folder", "files", "tables"):  # Python looks these up before they are set
            raise AttributeError(name)
        return self.table(name)


@in_users_frames
def predict(
    run: Any,
    out: str | Path | None = None,
    *,
    graph: Any = None,
    parts: int | None = None,
    embeddings: int | str | None = None,
    format: str = "npy",
    model: Any = None,
    ahead: ForkServer | None = None,
    phases: Phases | None = None,
) -> Predictions:
    """Predict every node's class and probabilities with a run's best model, by exact evaluation on the whole graph.

    run: its folder, or the result of `fg.train`. graph: another graph with the same features; its labels are ignored.
    It is divided into `parts`, or into as many parts as the run has. embeddings: a layer, by its number (from 1) or by
    its name in the model, whose output is written too. format: npy, csv or parquet. model: the run's model class, if no
    file holds it. out: the folder [predictions/ of the run; for another graph, a folder with its name inside
    predictions/].
    """
    check_format(format)
    folder = Path(getattr(run, "folder", run))
    config = Run.read(folder, model)
    check_names(folder)
    model_file(folder)  # refuses a run without a model before a graph is read
    require_device(config)
    task: TaskSpec = config.train.task  # type: ignore[assignment]  # a finished run has found it
    phases = phases or Phases(display=shown())
    with phases.display, ahead or ForkServer(config.train.device) as fork_server:
        fork_server.timeout = config.train.timeout
        with phases("read", f"reading {graph}" if isinstance(graph, str | Path) else ""):
            whole = None if graph is None else _as_trained(graph, config, folder)
        for line in () if whole is None else whole.notes:
            note(line)
        if whole is None and parts not in (None, 0, config.parts):
            raise InputError(f"the run's own graph has {config.parts} parts; leave --parts out")
        ranks = config.parts if whole is None else parts or config.parts
        there = "" if whole is None else Path(whole.name).name or "graph"
        target = Path(out) if out is not None else folder / "predictions" / there
        with _made(target), _claimed(target, folder, format, task), scratch(target) as work:
            arrays, shards = (target if format == "npy" else work), config.shards_in(folder)
            order = Order(out=str(arrays), embeddings="" if embeddings is None else str(embeddings))
            if whole is not None:
                shards = work / "shards"
                checksum = _cut(config, folder, whole, ranks, shards, phases)
                order = replace(order, shards=str(shards), shards_checksum=checksum)
            require_ranks(ranks, config.train.threads)
            arguments = [str(folder), "predict", json.dumps(asdict(order))]
            launch(ranks, arguments, phases=phases, fork_server=fork_server, classes=config.packed())
            with phases("write", "" if format == "npy" else f"writing tables as {format}"):
                if format == "npy":
                    found = [target / name for name in arrays_of(task)]
                else:
                    found = export(task, arrays, target, format, read_names(shards))
            return Predictions(target, tuple(path for path in found if path.exists()), predicted_by(task))


@contextmanager
def _claimed(target: Path, run: Path, format: str, task: TaskSpec) -> Iterator[None]:
    """Lock the folder. A file that no command of fullgraph wrote is refused, not replaced.

    Predictions that `fullgraph train` wrote at its end are in the run's own folder.
    """
    target.mkdir(parents=True, exist_ok=True)
    arrays = arrays_of(task)
    names = arrays if format == "npy" else files_of(task, format)
    with FolderLock(target) as lock:
        lock.claim(names, arrays if os.path.realpath(target) == os.path.realpath(run / "predictions") else ())
        try:
            yield
        except BaseException:
            if not any(os.path.lexists(target / name) for name in names):
                lock.remove()
            raise


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Create folders for a prediction, and remove them again if it fails."""
    missing = [path for path in [folder, *folder.parents] if not path.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # a folder with results stays
            for path in missing:
                path.rmdir()


def _as_trained(graph: Any, run: Run, folder: Path) -> Graph:
    """Return another graph in the form of the run's own: homogeneous, or the union of the same types and relations."""
    types = read_manifest(run.shards_in(folder)).graph.types
    if not types:
        return as_graph(graph)
    found = as_any_graph(graph)
    if not isinstance(found, TypedGraph):
        raise InputError(f"{found.name} is a homogeneous graph, and the run's is typed: give a graph of the same types")
    return like(found.with_reverses() if run.reverses else found, types).union


def _cut(run: Run, folder: Path, graph: Graph, ranks: int, shards: Path, phases: Phases) -> int:
    """Write another graph's shards for a run's model, with features scaled as in training; return their checksum."""
    own = run.shards_in(folder)
    facts, scaler = read_manifest(own).graph, read_scaler(own)
    check_fits(graph, facts, scaler)
    if facts.pairs and graph.pairs is None:
        raise InputError(f"{graph.name} has no pairs, and the run scores pairs; give it `pairs` (docs/data.md)")
    kind = {"multilabel": facts.multilabel, "real": facts.real, "class_names": facts.class_names}
    bare = graph.without_labels(facts.classes, **kind)  # type: ignore[arg-type]
    bare = bare if facts.pairs else bare.with_pairs(None)
    # a strategy's own partitioner is not for another graph
    chosen = run.partitioner if run.strategy.partitioner() is None else None
    assignment = cut(bare, ranks, chosen or Metis(), run.train.seed, phases)
    return write_shards(shards, bare, assignment, phases, features=scaler).checksum


def check_fits(graph: Graph, facts: GraphFacts, scaler: FeatureScaler) -> None:
    """Refuse a graph whose features, weights or pairs differ in kind from those of the run's own graph."""
    if graph.num_features != facts.features:
        raise InputError(
            f"{graph.name} has {graph.num_features} features per node, and the run was trained with {facts.features}; "
            "give the same features in the same order"
        )
    columns = 0 if graph.edge_attr is None else graph.edge_attr.shape[1]
    if columns != facts.edge_features:
        raise InputError(
            f"{graph.name} has {columns or 'no'} features per edge, and the run was trained with "
            f"{facts.edge_features or 'none'}; give edge_attr as in training"
        )
    if graph.weighted != facts.weighted:
        has, had = ("edge weights", "without") if graph.weighted else ("no edge weights", "with them")
        raise InputError(f"{graph.name} has {has}, and the run was trained {had}; give edge_weight as in training")
    if scaler.shift is not None and sp.issparse(graph.x):
        raise InputError(f"{graph.name} has sparse features, and the run scaled dense ones; give x as a dense matrix")
