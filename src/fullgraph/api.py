"""Training from Python: one call, or one's own loop inside a rank."""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullgraph.data import Graph, load
from fullgraph.errors import InputError, storage_error
from fullgraph.exchange import Wire
from fullgraph.nn import MODELS, GraphSAGE, ModelSpec, spec_of
from fullgraph.partition import is_partition_folder, open_part, partition, read_manifest, write_parts
from fullgraph.placement import Partitioned, Shard
from fullgraph.recipes import STRATEGIES, Recipe, make, vanilla
from fullgraph.report import write_json
from fullgraph.train.checkpoint import check_ranks
from fullgraph.train.config import RunConfig, TrainConfig
from fullgraph.train.launch import RankFailed, launch
from fullgraph.transport import Alone, ProcessTransport, Transport, adopt_slurm, join


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and what came out of it."""

    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    @property
    def predictions(self) -> np.ndarray[Any, Any]:
        """Every node's class, in the graph's own order."""
        return np.load(self.folder / "predictions" / "classes.npy")  # type: ignore[no-any-return]

    @property
    def probabilities(self) -> np.ndarray[Any, Any]:
        return np.load(self.folder / "predictions" / "probabilities.npy")  # type: ignore[no-any-return]


def train(
    graph: Graph | str | Path = "demo",
    *,
    model: ModelSpec | None = None,
    strategy: Recipe | None = None,
    parts: int | None = None,
    partitioner: str = "metis",
    features: str = "none",
    split: int = 0,
    out: str | Path | None = None,
    **options: Any,
) -> Run:
    """Train `model` on the whole graph over `parts` processes; `options` are the fields of TrainConfig.

    graph: a Graph, a name that `load` takes, or a folder that `fullgraph partition` wrote.
    """
    strategy, model = strategy or vanilla(), model or GraphSAGE()
    # Ranks are processes of their own: they are told names and options, not objects.
    if strategy.name not in STRATEGIES or make(strategy.name, **strategy.options) != strategy:
        raise InputError(f"strategy {strategy.name!r} is not one that a rank can make again; use your own loop instead")
    if MODELS.get(model.name) is not type(model):
        raise InputError(
            f"model {type(model).__name__} is not one that a rank can make again; use your own loop instead"
        )
    config = RunConfig(
        graph=graph.name if isinstance(graph, Graph) else str(graph),
        parts=parts or 0,
        partitioner=partitioner,
        features=features,
        split=split,
        model=model.as_dict(),
        strategy=strategy.as_dict(),
        train=TrainConfig(**options),
    )
    return start(config, graph, new_folder(config, out))


def start(config: RunConfig, graph: Graph | str | Path, folder: Path) -> Run:
    """Cut the graph, write the config, run the ranks; under torchrun or Slurm, be one of them."""
    adopt_slurm()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        prepared = prepare(config, graph, folder)
        _launch(folder, prepared.parts, "train")
    else:
        folder = _as_rank(folder, "train", config.train, lambda size: prepare(_with_parts(config, size), graph, folder))
    return Run(folder)


def resume(folder: Path, *, epochs: int | None = None, parts: int | None = None) -> Run:
    """Continue a run from its newest checkpoint."""
    config = RunConfig.read(folder)
    if epochs is not None and epochs < config.train.epochs and (folder / "result.json").exists():
        raise InputError(f"{folder} has all its {config.train.epochs} epochs done; give --epochs more than that")
    if epochs is not None:
        config = replace(config, train=replace(config.train, epochs=epochs))

    def extend(size: int) -> None:
        check_ranks(config.parts, size)
        write_json(folder / "config.json", config.as_dict())

    adopt_slurm()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        extend(parts or config.parts)
        _launch(folder, config.parts, "resume")
    else:
        _as_rank(folder, "resume", config.train, extend)
    return Run(folder)


def predict(folder: Path, out: Path) -> None:
    """Write every node's class and probabilities with a run's best model."""
    config = RunConfig.read(folder)
    launch(config.parts, "fullgraph.worker", [str(folder), "predict", str(out)])


def prepare(config: RunConfig, graph: Graph | str | Path, folder: Path) -> RunConfig:
    """Make the run's folder: shards (unless the graph is a folder of them) and the resolved config."""
    try:
        if not isinstance(graph, Graph) and is_partition_folder(Path(graph)):
            manifest = read_manifest(Path(graph))
            if config.parts not in (0, manifest.parts):
                raise InputError(
                    f"{graph} holds {manifest.parts} parts, not {config.parts}; pass --parts {manifest.parts}"
                )
            if config.features not in ("none", manifest.features):
                raise InputError(
                    f"{graph} was written with features {manifest.features!r}; partition again to change them"
                )
            config = replace(
                config,
                shards=str(Path(graph).resolve()),
                parts=manifest.parts,
                features=manifest.features,
                partitioner=manifest.method,
            )
            check_placement(config)
            folder.mkdir(parents=True, exist_ok=True)
        else:
            graph = graph if isinstance(graph, Graph) else load(str(graph))
            config = replace(config, parts=config.parts or 1)
            check_placement(config)
            recipe = make(**config.strategy)
            if recipe.partitioner:
                config = replace(config, partitioner=recipe.partitioner, partitioner_options=recipe.partitioner_options)
            if not 0 <= config.split < graph.num_splits:
                raise InputError(
                    f"split {config.split} does not exist; the graph has splits 0 to {graph.num_splits - 1}"
                )
            assignment = partition(
                graph, config.parts, method=config.partitioner, seed=config.train.seed, **config.partitioner_options
            )
            folder.mkdir(parents=True, exist_ok=True)
            write_parts(folder / "shards", graph, assignment, features=config.features, split=config.split)
        write_json(folder / "config.json", config.as_dict())
    except OSError as error:
        raise storage_error(error, folder) or error from error
    return config


def check_placement(config: RunConfig) -> None:
    """Refuse a model that the strategy cannot lay over so many ranks, before any of them starts."""
    recipe = make(**config.strategy)
    recipe.placement(**recipe.layout).check(spec_of(config.model).build(1, 2), config.parts)


def new_folder(config: RunConfig, out: str | Path | None) -> Path:
    """The folder asked for, or a fresh one under runs/; a folder that holds a run already is refused."""
    if out is not None:
        folder = Path(out)
        if (folder / "config.json").exists():
            raise InputError(
                f"{folder} holds a run already; continue it with --resume {folder}, or choose another --out"
            )
        return folder
    stem = f"{Path(config.graph).stem.split(':')[0]}-{config.model['name']}-{config.strategy['name']}"
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def open_shard(
    folder: str | Path,
    *,
    aggregation: str,
    wire: Wire | None = None,
    split: int = 0,
    inductive: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Shard:
    """This rank's share of a partitioned graph, for one's own loop; joins the job torchrun started, if any."""
    transport: Transport = join() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()
    part = open_part(Path(folder), transport.rank, split=split)
    if part.parts != transport.size:
        raise InputError(f"{folder} holds {part.parts} parts for {transport.size} ranks; start as many ranks as parts")
    return Partitioned(inductive=inductive, dtype=dtype).place(part, transport, wire or Wire(), aggregation)


def _launch(folder: Path, parts: int, job: str) -> None:
    try:
        launch(parts, "fullgraph.worker", [str(folder), job])
    except InputError:
        _undo(folder)
        raise
    except RankFailed as error:
        raise RankFailed(f"{error}; to go on: fullgraph train --resume {folder}") from None


def _undo(folder: Path) -> None:
    """Remove what `prepare` made for a run that never trained, so that the corrected command finds its folder free."""
    if any((folder / "checkpoints").glob("epoch-*")):
        return
    for name in ("shards", "checkpoints", "predictions"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("config.json", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _with_parts(config: RunConfig, size: int) -> RunConfig:
    if config.parts not in (0, size):
        raise InputError(f"--parts {config.parts} under {size} ranks; leave --parts out or make them equal")
    return replace(config, parts=size)


def _as_rank(folder: Path, job: str, config: TrainConfig, prepare_on_first: Callable[[int], object]) -> Path:
    """Be one rank of a job started elsewhere: rank 0 prepares, the others hear where, and whether it went well."""
    from fullgraph.worker import device_of, work

    transport: ProcessTransport = join(backend=config.backend, device=device_of(config.device), timeout=config.timeout)
    try:
        trouble = ""
        if transport.rank == 0:
            try:
                prepare_on_first(transport.size)
            except InputError as error:
                trouble = str(error)
        trouble = transport.tell(trouble)
        if trouble:
            raise InputError(trouble)
        folder = Path(transport.tell(str(folder)))
        work(folder, job, "", transport)
        return folder
    finally:
        transport.close()
