"""Training from Python: one call, or one's own loop inside a rank."""

import atexit
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from signal import Signals
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from fullgraph.data import Graph, load
from fullgraph.errors import InputError, Interrupted, explain
from fullgraph.exchange import Wire
from fullgraph.nn import MODELS, GraphSAGE, ModelSpec, spec_of
from fullgraph.own_model.unseen import unseen
from fullgraph.partition import (
    Manifest,
    cut_parts,
    is_partition_folder,
    open_part,
    partition,
    read_manifest,
    write_parts,
)
from fullgraph.placement import Partitioned, Shard
from fullgraph.recipes import STRATEGIES, Recipe, make, vanilla
from fullgraph.report import Phases
from fullgraph.report.terminal import note
from fullgraph.room import need_ranks
from fullgraph.storage import read_document, sweep
from fullgraph.train.checkpoint import check_ranks, found
from fullgraph.train.config import RunConfig, TrainConfig
from fullgraph.train.fits import need_room
from fullgraph.train.folder import RunFolder
from fullgraph.train.launch import RankFailed, launch
from fullgraph.train.stopping import Stop
from fullgraph.transport import Alone, Transport, adopt_slurm, join, number


def in_job() -> bool:
    """Whether torchrun or Slurm started this process as one rank of several."""
    adopt_slurm()
    number("RANK", 0)  # a wrong one is refused now, not when the run is done
    return number("WORLD_SIZE", 1) > 1


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and what came out of it."""

    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_document(self.folder / "result.json", fix="name the folder of a finished run")

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
    if in_job():
        phases = Phases()
        begin = partial(_begin, graph=graph, folder=folder, phases=phases)
        return Run(_as_rank(folder, config.train, lambda size: begin(_with_parts(config, size)), phases))
    with RunFolder.new(folder, shards=not _is_cut(graph)) as run:
        try:
            phases = Phases()
            _launch(run, prepare(config, graph, folder, phases), "train", phases)
        except BaseException as error:
            # A run that never trained is taken back, unless it was cut short and stands ready to be resumed.
            ready = (folder / "config.json").exists() and not isinstance(error, InputError)
            if not run.trained and not ready:
                run.undo()
            raise
    return Run(folder)


def resume(
    folder: Path, *, epochs: int | None = None, parts: int | None = None, max_restarts: int | None = None
) -> Run:
    """Continue a run from its newest whole checkpoint."""

    def extended(size: int) -> RunConfig:
        config = RunConfig.read(folder)
        check_ranks(config.parts, parts or size or config.parts)
        done = (folder / "result.json").exists()
        if done and not found(folder / "checkpoints"):
            raise InputError(f"{folder} is finished and kept no checkpoint to go on from; start a new run")
        if epochs is not None and epochs < config.train.epochs and done:
            raise InputError(f"{folder} has all its {config.train.epochs} epochs done; give --epochs more than that")
        if epochs is not None or max_restarts is not None:
            old = config.train
            restarts = old.max_restarts if max_restarts is None else max_restarts
            config = replace(config, train=replace(old, epochs=epochs or old.epochs, max_restarts=restarts))
            config.write(folder)
        return config

    if in_job():
        config = RunConfig.read(folder)
        again = lambda size: ("resume", RunFolder.existing(folder), extended(size))  # noqa: E731
        return Run(_as_rank(folder, config.train, again, Phases()))
    with RunFolder.existing(folder) as run:
        try:
            _launch(run, extended(0), "resume", Phases())
        except InputError:
            if not run.trained:
                run.undo()
            raise
    return Run(folder)


def predict(folder: Path, out: Path) -> None:
    """Write every node's class and probabilities with a run's best model."""
    config = RunConfig.read(folder)
    need_ranks(config.parts, config.train.threads)
    sweep(out)
    launch(config.parts, "fullgraph.worker", [str(folder), "predict", str(out)])


def prepare(config: RunConfig, graph: Graph | str | Path, folder: Path, phases: Phases) -> RunConfig:
    """Fill the run's folder: shards (unless the graph is a folder of them) and the resolved config."""
    try:
        if not isinstance(graph, Graph) and _is_cut(graph):
            config, manifest = _with_shards(config, Path(graph))
            check_placement(config)
        else:
            with phases("read"):
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
            with phases("cut"):
                assignment = partition(
                    graph, config.parts, method=config.partitioner, seed=config.train.seed, **config.partitioner_options
                )
                shards = folder / "shards"
                manifest = write_parts(shards, graph, assignment, features=config.features, split=config.split)
        config = replace(config, id=uuid4().hex, shards_checksum=manifest.checksum)
        config.write(folder)
    except Exception as error:
        raise explain(error, folder) or error from error
    return config


def _is_cut(graph: Graph | str | Path) -> bool:
    """Whether the graph is a folder of shards."""
    return not isinstance(graph, Graph) and is_partition_folder(Path(graph))


def _with_shards(config: RunConfig, shards: Path) -> tuple[RunConfig, Manifest]:
    """The config of a run on a graph that was cut before, and how it was cut."""
    manifest = read_manifest(shards)
    if config.parts not in (0, manifest.parts):
        raise InputError(f"{shards} holds {manifest.parts} parts, not {config.parts}; pass --parts {manifest.parts}")
    if config.features not in ("none", manifest.features):
        raise InputError(f"{shards} was written with features {manifest.features!r}; partition again to change them")
    config = replace(
        config,
        shards=str(shards.resolve()),
        parts=manifest.parts,
        features=manifest.features,
        partitioner=manifest.method,
    )
    return config, manifest


def check_placement(config: RunConfig) -> None:
    """Refuse a model that the strategy cannot lay over so many ranks, before any of them starts."""
    recipe = make(**config.strategy)
    recipe.placement(**recipe.layout).check(spec_of(config.model).outline(1, 2), config.parts)


def new_folder(config: RunConfig, out: str | Path | None) -> Path:
    """The folder asked for, or a fresh one under runs/."""
    if out is not None:
        return Path(out)
    stem = f"{Path(config.graph).stem.split(':')[0]}-{config.model['name']}-{config.strategy['name']}"
    return Path("runs") / f"{stem[:100]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def open_shard(
    graph: Graph | str | Path,
    *,
    aggregation: str | None = None,
    wire: Wire | None = None,
    split: int = 0,
    inductive: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Shard:
    """This rank's share of a graph, for one's own loop; joins the job torchrun started, if any.

    graph: a folder that `fullgraph partition` wrote; or a Graph, or a name that `load` takes, which every rank reads
    whole and cuts alike: for small graphs. aggregation: of our own models; one of yours (fg.distribute) needs none.
    """
    transport: Transport = join() if in_job() else Alone()
    atexit.register(transport.close)
    if not isinstance(graph, Graph) and _is_cut(graph):
        part = open_part(Path(graph), transport.rank, split=split)
        if part.parts != transport.size:
            raise InputError(
                f"{graph} holds {part.parts} parts for {transport.size} ranks; start as many ranks as parts"
            )
    else:
        whole = graph if isinstance(graph, Graph) else load(str(graph))
        part = cut_parts(whole, partition(whole, transport.size, method="metis", seed=0), transport.rank, split=split)
    placement = Partitioned(inductive=inductive, dtype=dtype, precompute=aggregation is not None)
    shard = placement.place(part, transport, wire or Wire(), aggregation or "sum")
    return shard if aggregation else unseen(shard)


def _launch(run: RunFolder, config: RunConfig, job: str, phases: Phases) -> None:
    """Run the ranks; when one dies, resume from the newest whole checkpoint as often as the run allows."""
    need_room(read_manifest(config.shards_in(run.path)), spec_of(config.model), config)
    for restart in range(config.train.max_restarts + 1):
        try:
            arguments = [str(run.path), job]
            return launch(config.parts, "fullgraph.worker", arguments, inherit=[run.lock.handle], phases=phases)
        except RankFailed as error:
            left = config.train.max_restarts - restart
            if not left:
                raise RankFailed(f"{error}; to go on: fullgraph train --resume {run.path}") from None
            note(f"{error}; resuming from the newest checkpoint, {left} restarts left")
        except Interrupted as error:
            go_on = f"to go on: fullgraph train --resume {run.path}"
            raise Interrupted(f"interrupted by {Signals(error.number).name}: {error}; {go_on}", error.number) from None
        job = "resume"


def _with_parts(config: RunConfig, size: int) -> RunConfig:
    if config.parts not in (0, size):
        raise InputError(f"--parts {config.parts} under {size} ranks; leave --parts out or make them equal")
    return replace(config, parts=size)


Begun = tuple[str, RunFolder, RunConfig]  # what the ranks shall do, the folder that rank 0 holds for it, its config


def _begin(config: RunConfig, graph: Graph | str | Path, folder: Path, phases: Phases) -> Begun:
    """Rank 0's part of a new run; after torchrun started all ranks again, of the same run."""
    if number("TORCHELASTIC_RESTART_COUNT", 0) and (folder / "config.json").exists():
        return "resume", RunFolder.existing(folder), config
    run = RunFolder.new(folder, shards=not _is_cut(graph))
    try:
        return "train", run, prepare(config, graph, folder, phases)
    except BaseException:
        run.undo()
        raise


def _as_rank(folder: Path, config: TrainConfig, begin: Callable[[int], Begun], phases: Phases) -> Path:
    """Be one rank of a job started elsewhere: rank 0 prepares, the others hear where, and whether it went well."""
    from fullgraph.worker import device_of, work

    stop = Stop()
    stop.listen()
    transport = join(backend=config.backend, device=device_of(config.device), timeout=config.timeout)
    with ExitStack() as stack:
        stack.callback(transport.close)
        told = {"trouble": "", "job": "", "folder": str(folder)}
        run: RunFolder | None = None
        if transport.rank == 0:
            try:
                with transport.away("preparing the run: reading and cutting the graph"):
                    told["job"], run, _ = begin(transport.size)
                stack.enter_context(run)
            except InputError as error:
                told["trouble"] = str(error)
        told = json.loads(transport.tell(json.dumps(told)))
        if told["trouble"]:
            raise InputError(told["trouble"])
        try:
            work(Path(told["folder"]), told["job"], "", transport, stop, phases)
        except InputError:
            if run is not None and not run.trained:
                run.undo()
            raise
        except Interrupted as error:
            go_on = f"to go on: --resume {told['folder']}"
            raise Interrupted(f"interrupted: {error}; {go_on}", error.number) from None
        return Path(told["folder"])
