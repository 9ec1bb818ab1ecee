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

from fullgraph.axes import MODELS
from fullgraph.data import Graph, as_graph, load
from fullgraph.environ import in_job, number
from fullgraph.errors import InputError, Interrupted, RankFailed, explain
from fullgraph.exchange import Wires
from fullgraph.nn import ModelSpec
from fullgraph.own_model.unseen import unseen
from fullgraph.partition import (
    Manifest,
    Metis,
    Partitioner,
    cut_parts,
    is_partition_folder,
    open_part,
    partition,
    read_manifest,
    write_parts,
)
from fullgraph.placement import Shard, WholeStep
from fullgraph.predicting import Predictions, predict
from fullgraph.recipes import Given, Strategy
from fullgraph.reference import hand_over, has_a_file, reference_of, refuse_while_running
from fullgraph.remarks import remarks
from fullgraph.report import EpochRecord, Phases, read_metrics
from fullgraph.report.terminal import note
from fullgraph.run import Run, build_model, build_shard, device_of
from fullgraph.storage import read_document
from fullgraph.tasks import TaskSpec, fitted, task_for
from fullgraph.train.checkpoint import check_ranks, found
from fullgraph.train.config import TrainConfig
from fullgraph.train.fits import need_room
from fullgraph.train.folder import RunFolder
from fullgraph.train.launch import launch
from fullgraph.train.nursery import Nursery
from fullgraph.train.stopping import Stop
from fullgraph.transport import Alone, Transport, join
from fullgraph.values import read_value


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder and what came out of it."""

    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_document(self.folder / "result.json", fix="name the folder of a finished run")

    @cached_property
    def metrics(self) -> list[EpochRecord]:
        """One record an epoch."""
        return read_metrics(self.folder / "metrics.jsonl", self.result["epochs"])

    @cached_property
    def model(self) -> torch.nn.Module:
        """The best model, on the CPU; one of your own is the module that you wrote."""
        from fullgraph.worker import load_best

        run = Run.read(self.folder)
        facts = read_manifest(run.shards_in(self.folder)).graph
        model: torch.nn.Module = build_model(run, facts)
        load_best(model, self.folder, run)
        return model.eval()

    def predict(self, graph: Any = None, **options: Any) -> Predictions:
        """Classes and probabilities of another graph, or of the run's own; options are those of `fg.predict`."""
        return predict(self.folder, graph=graph, **options)

    @property
    def predictions(self) -> np.ndarray[Any, Any]:
        """Every node's class or numbers, in the graph's own order; of links, the scores of its pairs."""
        return self.prediction({"regression": "values", "link": "scores"}.get(self.result["task"], "classes"))

    def prediction(self, name: str) -> np.ndarray[Any, Any]:
        """One of the tables that the run predicted, such as `embeddings`."""
        return np.load(self.folder / "predictions" / f"{name}.npy")  # type: ignore[no-any-return]

    @property
    def probabilities(self) -> np.ndarray[Any, Any]:
        return self.prediction("probabilities")


def train(
    graph: Any = "demo",
    *,
    model: ModelSpec | str | Callable[..., torch.nn.Module] = "sage",
    strategy: Strategy | str = "vanilla",
    parts: int | None = None,
    partitioner: Partitioner | str = "metis",
    features: str = "none",
    split: int = 0,
    out: str | Path | None = None,
    **options: Any,
) -> FinishedRun:
    """Train `model` on the whole graph over `parts` processes; `options` are the fields of TrainConfig.

    graph: a Graph, a PyG `Data`, a name that `load` takes, or a folder that `fullgraph partition` wrote.
    model, strategy, partitioner: values, or the names of some, your own (`my_file.py:Name`) among them. model may be a
    torch module's class, which is called as PyG's are, or functools.partial(Net, hidden=64) of it.
    """
    graph = graph if isinstance(graph, str | Path) else as_graph(graph)
    run = Run(
        graph=graph.name if isinstance(graph, Graph) else str(graph),
        parts=parts or 0,
        partitioner=partitioner,  # type: ignore[arg-type]  # a name becomes the value it stands for
        features=features,
        split=split,
        model=_chosen(model),
        strategy=strategy,  # type: ignore[arg-type]
        train=read_value(TrainConfig, options, "fg.train"),
    )
    return start(run, graph, new_folder(run, out))


def _chosen(model: Any) -> Any:
    """A torch module's class, or functools.partial of one, as the value that describes it; anything else as it is."""
    kind, options = (model.func, model.keywords) if isinstance(model, partial) else (model, {})
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        return model
    if isinstance(model, partial) and model.args:
        raise InputError(f"partial({kind.__name__}, ...) has arguments without names; give them as NAME=VALUE")
    return MODELS.make(reference_of(kind) if has_a_file(kind) else hand_over(kind), **options)


def start(
    config: Run, graph: Graph | str | Path, folder: Path, *, ahead: Nursery | None = None, phases: Phases | None = None
) -> FinishedRun:
    """Cut the graph, write the config, run the ranks; under torchrun or Slurm, be one of them.

    ahead: where the ranks come from, if that was started before. phases: what the start has taken until now.
    """
    refuse_while_running()
    phases = phases or Phases()
    if not in_job():
        config.packed()  # refused before a graph is read
    if in_job():
        begin = partial(_begin, graph=graph, folder=folder, phases=phases)
        return FinishedRun(_as_rank(folder, config.train, lambda size: begin(_with_parts(config, size)), phases))
    with RunFolder.new(folder, shards=not _is_cut(graph)) as run, ahead or Nursery(config.train.device) as nursery:
        try:
            _launch(run, prepare(config, graph, folder, phases), "train", phases, nursery)
        except BaseException as error:
            # A run that never trained is taken back, unless it was cut short and stands ready to be resumed.
            ready = (folder / "config.json").exists() and not isinstance(error, InputError)
            if not run.trained and not ready:
                run.undo()
            raise
    return FinishedRun(folder)


def resume(
    folder: str | Path, *, epochs: int | None = None, schedule_epochs: int | None = None, parts: int | None = None,
    max_restarts: int | None = None, model: type[torch.nn.Module] | None = None, ahead: Nursery | None = None,
    phases: Phases | None = None,
) -> FinishedRun:  # fmt: skip
    """Continue a run from its newest whole checkpoint; model: its class, where that is in no file.

    More epochs keep the schedules of the run (learning rate, rates of a strategy), unless schedule_epochs says for how
    many epochs to lay them out anew.
    """
    folder, phases = Path(folder), phases or Phases()
    if model is not None:
        Run.read(folder, model)  # from now on its name finds it

    def extended(size: int) -> Run:
        config = Run.read(folder)
        check_ranks(config.parts, parts or size or config.parts)
        done = (folder / "result.json").exists()
        if done and not found(folder / "checkpoints"):
            raise InputError(f"{folder} is finished and kept no checkpoint to go on from; start a new run")
        if epochs is not None and epochs < config.train.epochs and done:
            raise InputError(f"{folder} has all its {config.train.epochs} epochs done; give --epochs more than that")
        told = {"epochs": epochs, "schedule_epochs": schedule_epochs, "max_restarts": max_restarts}
        changes: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
        if changes:
            changes = {"schedule_epochs": config.train.planned} | changes
            config = replace(config, train=replace(config.train, **changes))
            config.write(folder)
        return config

    if in_job():
        config = Run.read(folder)
        again = lambda size: ("resume", RunFolder.existing(folder), extended(size))  # noqa: E731
        return FinishedRun(_as_rank(folder, config.train, again, phases))
    with RunFolder.existing(folder) as run:
        try:
            _launch(run, extended(0), "resume", phases, ahead)
        except InputError:
            if not run.trained:
                run.undo()
            raise
    return FinishedRun(folder)


def prepare(config: Run, graph: Graph | str | Path, folder: Path, phases: Phases) -> Run:
    """Fill the run's folder: shards (unless the graph is a folder of them) and the resolved config."""
    try:
        if not isinstance(graph, Graph) and _is_cut(graph):
            config, manifest = _with_shards(config, Path(graph))
            task = task_for(config.train.task, manifest.graph, cut=True)
            task.check(manifest.graph, cut=True)
            config = replace(config, train=replace(config.train, task=task))
            check_placement(config)
        else:
            with phases("read"):
                graph = graph if isinstance(graph, Graph) else load(str(graph))
            task, graph = fitted(config.train.task, graph, config.train.seed)
            config = replace(config, parts=config.parts or 1, train=replace(config.train, task=task))
            check_placement(config)
            partitioner = config.strategy.partitioner() or config.partitioner or Metis()
            config = replace(config, partitioner=partitioner)
            if not 0 <= config.split < graph.num_splits:
                raise InputError(
                    f"split {config.split} does not exist; the graph has splits 0 to {graph.num_splits - 1}"
                )
            with phases("cut"):
                assignment = partition(graph, config.parts, partitioner, config.train.seed)
                shards = folder / "shards"
                manifest = write_parts(shards, graph, assignment, features=config.features, split=config.split)
        config = replace(config, id=uuid4().hex, shards_checksum=manifest.checksum)
        config.write(folder)
        for remark in remarks(config, manifest):
            note(remark)
    except Exception as error:
        raise explain(error, folder) or error from error
    return config


def _is_cut(graph: Graph | str | Path) -> bool:
    """Whether the graph is a folder of shards."""
    return not isinstance(graph, Graph) and is_partition_folder(Path(graph))


def _with_shards(config: Run, shards: Path) -> tuple[Run, Manifest]:
    """The config of a run on a graph that was cut before, and how it was cut."""
    manifest = read_manifest(shards)
    if config.parts not in (0, manifest.parts):
        raise InputError(f"{shards} holds {manifest.parts} parts, not {config.parts}; pass --parts {manifest.parts}")
    if config.features not in ("none", manifest.features):
        raise InputError(f"{shards} was written with features {manifest.features!r}; partition again to change them")
    config = replace(
        config, shards=str(shards.resolve()), parts=manifest.parts, features=manifest.features, partitioner=None
    )
    return config, manifest


def check_placement(config: Run) -> None:
    """Refuse a model that the strategy cannot lay over so many ranks, before any of them starts."""
    model = config.model.outline(1, 2)
    model.checkpoint_layers = config.train.checkpoint_layers
    layout = replace(config.strategy.layout(), host_rows=config.train.features_on == "host")
    layout.check(model, config.parts)
    task: TaskSpec = config.train.task  # type: ignore[assignment]  # `prepare` has found it
    task.check_placement(layout, inductive=config.train.inductive)


def new_folder(config: Run, out: str | Path | None) -> Path:
    """The folder asked for, or a fresh one under runs/."""
    if out is not None:
        return Path(out)
    stem = f"{Path(config.graph).stem.split(':')[0]}-{config.model.name}-{config.strategy.name}".replace(":", "-")
    return Path("runs") / f"{stem[:100]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def open_shard(
    graph: Graph | str | Path,
    *,
    model: ModelSpec | str | None = None,
    aggregation: str = "",
    strategy: Strategy | str = "vanilla",
    wire: Wires | None = None,
    split: int = 0,
    inductive: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Shard:
    """This rank's share of a graph, for one's own loop; joins the job torchrun started, if any.

    graph: a folder that `fullgraph partition` wrote; or a Graph, or a name that `load` takes, which every rank reads
    whole and cuts alike: for small graphs. model: one of ours, whose aggregation is meant; or name the aggregation
    itself; a model of yours (fg.distribute) needs neither. wire: in place of a whole strategy.
    """
    own = model is None and not aggregation
    number_format = str(dtype).removeprefix("torch.")
    config = TrainConfig(inductive=inductive, dtype=number_format, precompute=not own, all_rows=True)
    laid = strategy if wire is None else Given(wire=wire)
    run = Run(model=model or "sage", strategy=laid, train=config)  # type: ignore[arg-type]
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
        whole.need_labels()
        part = cut_parts(whole, partition(whole, transport.size), transport.rank, split=split)
    shard = build_shard(run, part, transport, aggregation or ("sum" if own else ""))
    if not isinstance(shard.executor, WholeStep):
        raise InputError(f"strategy {run.strategy.name} runs a step in pieces, which a loop of one's own does not")
    return unseen(shard) if own else shard


def _launch(run: RunFolder, config: Run, job: str, phases: Phases, nursery: Nursery | None) -> None:
    """Run the ranks; when one dies, resume from the newest whole checkpoint as often as the run allows."""
    need_room(read_manifest(config.shards_in(run.path)), config.model, config.train)
    for restart in range(config.train.max_restarts + 1):
        try:
            arguments = [str(run.path), job]
            nursery = nursery or Nursery(config.train.device)
            handles, classes = [run.lock.handle], config.packed()
            return launch(config.parts, arguments, inherit=handles, phases=phases, nursery=nursery, classes=classes)
        except RankFailed as error:
            left = config.train.max_restarts - restart
            if not left:
                raise RankFailed(f"{error}; to go on: fullgraph train --resume {run.path}") from None
            note(f"{error}; resuming from the newest checkpoint, {left} restarts left")
        except Interrupted as error:
            go_on = f"to go on: fullgraph train --resume {run.path}"
            raise Interrupted(f"interrupted by {Signals(error.number).name}: {error}; {go_on}", error.number) from None
        job, nursery = "resume", None


def _with_parts(config: Run, size: int) -> Run:
    if config.parts not in (0, size):
        raise InputError(f"--parts {config.parts} under {size} ranks; leave --parts out or make them equal")
    return replace(config, parts=size)


Begun = tuple[str, RunFolder, Run]  # what the ranks shall do, the folder that rank 0 holds for it, its config


def _begin(config: Run, graph: Graph | str | Path, folder: Path, phases: Phases) -> Begun:
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
    from fullgraph.worker import work

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
