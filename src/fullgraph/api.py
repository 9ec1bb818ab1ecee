"""Train from Python: with one call, or with a user's own loop inside a rank."""

import atexit
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fullgraph.axes import MODELS
from fullgraph.cached import cached_property
from fullgraph.data import Graph, as_any_graph, as_union
from fullgraph.display import shown
from fullgraph.environ import in_job
from fullgraph.errors import InputError
from fullgraph.exchange import Wires
from fullgraph.jobs import agreed, as_rank, asked, begin_in_job, launch_ranks, on_ranks, with_parts
from fullgraph.nn import ModelSpec, Usual
from fullgraph.own_code import in_users_frames
from fullgraph.partition import Partitioner, cut_parts, open_part, partition, read_manifest
from fullgraph.placement import Shard, WholeStep
from fullgraph.predicting import Predictions, predict
from fullgraph.preparing import is_cut, new_folder, prepare
from fullgraph.recipes import Given, Strategy
from fullgraph.reference import reference_to, refuse_while_running
from fullgraph.report import EpochRecord, Phases, read_metrics
from fullgraph.run import Run, build_model, build_shard, require_device, rows_alone
from fullgraph.storage import read_document
from fullgraph.tasks import main_table
from fullgraph.train.checkpoint import checkpoints_in
from fullgraph.train.config import TrainConfig
from fullgraph.train.folder import RunFolder
from fullgraph.train.fork_server import ForkServer
from fullgraph.transport import SingleRank, Transport, join
from fullgraph.values import read_value


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder and its results."""

    folder: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_document(self.folder / "result.json", fix="name the folder of a finished run")

    @cached_property
    def metrics(self) -> list[EpochRecord]:
        """One record per epoch."""
        return read_metrics(self.folder / "metrics.jsonl", self.result["epochs"])

    @cached_property
    def model(self) -> torch.nn.Module:
        """The best model, on the CPU; for a user's own model, the module that the user wrote."""
        from fullgraph.worker import load_best

        run = Run.read(self.folder)
        facts = read_manifest(run.shards_in(self.folder)).graph
        model: torch.nn.Module = build_model(run, facts)
        load_best(model, self.folder, run)
        return model.eval()

    def predict(self, graph: Any = None, **options: Any) -> Predictions:
        """Predict classes and probabilities for another graph, or for the run's own; options are those of
        `fg.predict`.
        """
        return predict(self.folder, graph=graph, **options)

    @property
    def predictions(self) -> np.ndarray[Any, Any]:
        """Every node's class or numbers, in the graph's node order; for link prediction, the scores of its pairs."""
        return self.prediction(self.result.get("predicts") or main_table(Run.read(self.folder).train.task))

    def prediction(self, name: str) -> np.ndarray[Any, Any]:
        """One of the tables that the run predicted, such as `embeddings`."""
        return np.load(self.folder / "predictions" / f"{name}.npy")  # type: ignore[no-any-return]

    @property
    def probabilities(self) -> np.ndarray[Any, Any]:
        return self.prediction("probabilities")


@in_users_frames
def train(
    graph: Any = "demo",
    *,
    model: ModelSpec | str | torch.nn.Module | Callable[..., torch.nn.Module] | None = None,
    strategy: Strategy | str = "vanilla",
    parts: int | None = None,
    partitioner: Partitioner | str = "metis",
    features: str = "none",
    split: int | str = 0,
    reverses: bool = False,
    out: str | Path | None = None,
    **options: Any,
) -> FinishedRun:
    """Train `model` on the whole graph over `parts` processes; `options` are the fields of TrainConfig.

    graph: a Graph or TypedGraph, a PyG `Data` (or the three of RandomLinkSplit) or `HeteroData`, a name that `load` or
    `load_typed` takes, or a folder that `fullgraph partition` wrote. split: a number, or `random:60/20/20`. model,
    strategy, partitioner: a value, or a name, which may be your own (`my_file.py:Name`). model may also be a torch
    module class whose forward is called like that of a PyG model, functools.partial(Net, hidden=64), a function that
    builds a module, or a module, whose weights are the initial weights; the default is the task's default model, or
    that of typed graphs. reverses: add a reversed relation beside each relation of a typed graph.
    """
    graph = graph if isinstance(graph, str | Path) else as_union(as_any_graph(graph), reverses=reverses)
    run = Run(
        graph=graph.name if isinstance(graph, Graph) else str(graph),
        parts=parts or 0,
        partitioner=partitioner,  # type: ignore[arg-type]  # a name becomes the value it stands for
        features=features,
        split=split,
        reverses=reverses,
        model=Usual() if model is None else _chosen(model),
        strategy=strategy,  # type: ignore[arg-type]
        train=read_value(TrainConfig, options, "fg.train"),
    )
    return start(run, graph, new_folder(run, out))


def _chosen(model: Any) -> Any:
    """Describe a torch module, its class, or a function that builds it, as a value; return anything else unchanged."""
    kind, options = (model.func, model.keywords) if isinstance(model, partial) else (model, {})
    if isinstance(model, torch.nn.Module) or inspect.isroutine(kind):
        return MODELS.make(reference_to(model))
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        return model
    if isinstance(model, partial) and model.args:
        raise InputError(f"partial({kind.__name__}, ...) has arguments without names; give them as NAME=VALUE")
    return MODELS.make(reference_to(kind), **options)


def start(
    config: Run,
    graph: Graph | str | Path,
    folder: Path,
    *,
    ahead: ForkServer | None = None,
    phases: Phases | None = None,
) -> FinishedRun:
    """Partition the graph, write the config and run the ranks; under torchrun or Slurm, be one of the ranks.

    ahead: the fork server, if it is already running. phases: the phases of the start so far.
    """
    refuse_while_running()
    phases = phases or Phases(display=shown())
    with phases.display:
        return _start(config, graph, folder, ahead, phases)


def _start(
    config: Run, graph: Graph | str | Path, folder: Path, ahead: ForkServer | None, phases: Phases
) -> FinishedRun:
    if not in_job():
        config.packed()  # refuses a model that cannot be sent, before the graph is read
    if in_job():
        begin = partial(begin_in_job, graph=graph, folder=folder, phases=phases)
        about = partial(asked, "train", config, graph)
        return FinishedRun(as_rank(folder, config.train, lambda size: begin(with_parts(config, size)), phases, about))
    require_device(config)
    with (
        RunFolder.new(folder, shards=not is_cut(graph)) as run,
        ahead or ForkServer(config.train.device) as fork_server,
    ):
        try:
            launch_ranks(run, prepare(config, graph, run, phases), "train", phases, fork_server)
        except BaseException as error:
            # Remove a run that never trained, unless it was interrupted and can be resumed.
            ready = (folder / "config.json").exists() and not isinstance(error, InputError)
            if not run.trained and not ready:
                run.undo()
            raise
    return FinishedRun(folder)


@in_users_frames
def resume(
    folder: str | Path, *, epochs: int | None = None, schedule_epochs: int | None = None, parts: int | None = None,
    max_restarts: int | None = None, model: Any = None, ahead: ForkServer | None = None,
    phases: Phases | None = None,
) -> FinishedRun:  # fmt: skip
    """Continue a run from its newest complete checkpoint. model: its class, function or module, if no file holds it.

    parts: another number of ranks; the graph is cut again, and exact strategies go on to the same result.
    With more epochs, the run's schedules (learning rate, rates of a strategy) stay as planned; schedule_epochs plans
    them again for that many epochs.
    """
    folder, phases = Path(folder), phases or Phases(display=shown())
    if model is not None:
        Run.read(folder, model)  # registers the model, so that its name can be found
    told = {"epochs": epochs, "schedule_epochs": schedule_epochs, "max_restarts": max_restarts}

    def extended(size: int) -> Run:
        config = Run.read(folder)
        ranks = agreed(parts or 0, size)
        done = (folder / "result.json").exists()
        if done and not checkpoints_in(folder / "checkpoints"):
            raise InputError(f"{folder} is finished and kept no checkpoint to go on from; start a new run")
        if epochs is not None and epochs < config.train.epochs and done:
            raise InputError(f"{folder} has all its {config.train.epochs} epochs done; give --epochs more than that")
        changes: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
        if changes:
            changes = {"schedule_epochs": config.train.planned} | changes
            config = replace(config, train=replace(config.train, **changes))
        moved = on_ranks(config, folder, ranks, phases)
        if changes and moved is config:
            config.write(folder)
        return moved

    if in_job():
        config = Run.read(folder)
        again = lambda size: ("resume", RunFolder.existing(folder), extended(size))  # noqa: E731
        return FinishedRun(as_rank(folder, config.train, again, phases, lambda: asked("resume", config) | told))
    with phases.display, RunFolder.existing(folder) as run:
        require_device(Run.read(folder))
        try:
            launch_ranks(run, extended(0), "resume", phases, ahead)
        except InputError:
            if not run.trained:
                run.undo()
            raise
    return FinishedRun(folder)


@in_users_frames
def open_shard(
    graph: Any,
    *,
    model: ModelSpec | str | None = None,
    aggregation: str = "",
    strategy: Strategy | str = "vanilla",
    wire: Wires | None = None,
    split: int = 0,
    inductive: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Shard:
    """Return this rank's share of a graph, for a user's own loop; joins the job if torchrun started one.

    graph: a folder that `fullgraph partition` wrote; or a Graph, a TypedGraph, PyG data or a name that `fg.train`
    takes, which every rank reads whole and partitions identically: for small graphs. The shard of a typed graph has
    x_dict, edge_index_dict and metadata(), for a user's model. model: a model of fullgraph, which determines the
    aggregation; or pass `aggregation` itself; a user's model (fg.distribute) needs neither. wire: replaces a whole
    strategy.
    """
    own = model is None and not aggregation
    number_format = str(dtype).removeprefix("torch.")
    config = TrainConfig(inductive=inductive, dtype=number_format, precompute=not own, all_rows=True)
    laid = strategy if wire is None else Given(wire=wire)
    run = Run(model=model or "sage", strategy=laid, train=config)  # type: ignore[arg-type]
    transport: Transport = join() if in_job() else SingleRank()
    atexit.register(transport.close)
    if isinstance(graph, str | Path) and is_cut(graph):
        part = open_part(Path(graph), transport.rank, split=split)
        if part.parts != transport.size:
            raise InputError(
                f"{graph} holds {part.parts} parts for {transport.size} ranks; start as many ranks as parts"
            )
    else:
        whole = as_union(as_any_graph(graph))
        whole.need_labels()
        part = cut_parts(whole, partition(whole, transport.size), transport.rank, split=split)
    types = part.manifest.graph.types
    if types and not own:
        raise InputError(
            f"{part.manifest.graph.name} is a typed graph, and its shard is for a user's model: leave out model and "
            "aggregation, and use fg.distribute (docs/typed.md)"
        )
    if types and inductive:
        raise InputError("inductive training keeps only the training nodes, which are of one type: leave it out")
    if own:
        return rows_alone(run, part, transport)
    shard = build_shard(run, part, transport, aggregation)
    if not isinstance(shard.executor, WholeStep):
        raise InputError(f"strategy {run.strategy.name} splits a step into pieces, and your own loop cannot do that")
    return shard
