"""One rank of a run:  python -m fullgraph.worker FOLDER train|resume|predict [OUT]."""

import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NoReturn

import torch

from fullgraph import recipes
from fullgraph.errors import Damaged, InputError, Interrupted, explain
from fullgraph.nn import Chain, spec_of
from fullgraph.ops import kernels
from fullgraph.partition import open_part
from fullgraph.placement import Shard
from fullgraph.report import EpochRecord, Meter, MetricsLog, Phases, peak_device_bytes, peak_memory_bytes
from fullgraph.report.terminal import tolerate_output
from fullgraph.storage import read_tensors, write_document, write_tensors
from fullgraph.train.checkpoint import Checkpoints
from fullgraph.train.config import RunConfig
from fullgraph.train.launch import EXIT_INPUT, EXIT_STOPPED
from fullgraph.train.precision import Weights, allow_tf32, rows_dtype
from fullgraph.train.predict import write_predictions
from fullgraph.train.progress import Live, Plain, progress
from fullgraph.train.result import Cost, result_of
from fullgraph.train.stopping import LastWords, Stop, started
from fullgraph.train.task import Task, task_of
from fullgraph.train.tensorboard import TensorBoard
from fullgraph.train.trainer import Trainer, Watcher
from fullgraph.transport import Alone, Counting, Key, PeerLost, Transport, join, number

MODEL = "model.safetensors"


class Rank:
    """What every job of a rank needs: its shard, a model, the task."""

    def __init__(self, folder: Path, config: RunConfig, transport: Transport, phases: Phases) -> None:
        self.phases = phases
        torch.set_num_threads(config.train.threads or threads_per_rank())
        recipe = recipes.make(**config.strategy)
        device = rank_device(config, transport.rank)
        self.folder, self.config, self.device, self.meter = folder, config, device, Meter(device)
        self.transport = Counting(transport, self.meter.sent, self.meter.waiting)
        spec = spec_of(config.model)
        shards = config.shards_in(folder)
        self.part = open_part(shards, transport.rank, split=config.split)
        if self.part.manifest.checksum != config.shards_checksum:
            raise InputError(f"{shards} are not the shards this run began with; put those back, or start a new run")
        facts = self.part.manifest.graph
        self.task: Task = task_of(multilabel=facts.multilabel, classes=facts.classes, metric=config.train.metric)
        dtype = getattr(torch, config.train.dtype)
        self.dtype = rows_dtype(config.train.precision, dtype)
        allow_tf32(config.train.precision)
        for other in recipe.layout.get("aggregate_on", ()):
            device_of(other)
        placement = recipe.placement(
            **recipe.layout,
            inductive=config.train.inductive,
            precompute=config.train.precompute and not spec.encodes,
            narrow_first=recipe.narrow_first,
            isolated=recipe.isolated,
            hops=() if config.train.all_rows else spec.hops,
            host_rows=config.train.features_on == "host",
            order=config.train.order,
            seed=config.train.seed,
            dtype=self.dtype,
            device=device,
        )
        wires = recipe.wires(epochs=config.train.epochs, layers=spec.graph_layers)
        self.shard: Shard = placement.place(self.part, self.transport, wires, spec.aggregation)
        self.model: Chain = spec.build(facts.features, facts.classes, seed=config.train.seed, dtype=dtype).to(device)


def device_of(name: str) -> torch.device:
    """This rank's device; ranks beyond a machine's GPUs share them, unless each is told which."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("--device cuda, but torch sees no GPU; use --device cpu")
    if name != "cuda":
        device = torch.device(name)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise InputError(f"device {name}, but torch sees {torch.cuda.device_count()} GPUs; count them from cuda:0")
        return device
    return torch.device("cuda", number("LOCAL_RANK", 0) % torch.cuda.device_count())


def rank_device(config: RunConfig, rank: int) -> torch.device:
    """Where a rank's rows are: where its strategy says, else where the run does."""
    devices = recipes.make(**config.strategy).devices
    return device_of(devices[rank] if devices else config.train.device)


def threads_per_rank() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, number("LOCAL_WORLD_SIZE", 1)))


def train(rank: Rank, stop: Stop, *, resume: bool) -> None:
    """Train to the end, or until a signal; rank 0 keeps the record."""
    first_epoch = FirstEpoch(rank.phases, aloud=rank.transport.rank == 0)
    trainer = Trainer(rank.model, rank.shard, rank.task, rank.config.train, rank.meter)
    every, run = rank.config.train.checkpoint_every, rank.config.id
    checkpoints = Checkpoints(rank.folder / "checkpoints", rank.transport, every, run)
    if resume:
        checkpoints.restore(trainer)
    with ExitStack() as stack:
        recorders = _recorders(rank, trainer) if rank.transport.rank == 0 else []
        watchers: list[Watcher] = [stack.enter_context(closing(recorder)) for recorder in recorders]
        finished = trainer.fit([first_epoch, *watchers, checkpoints], stop)
    if not finished:
        _leave_early(rank, trainer, checkpoints, stop)
    checkpoints.finish()
    _write_outcome(rank, trainer, checkpoints)


class FirstEpoch:
    """Notes when the first epoch was over, kernels compiled and all; rank 0 says what the start took."""

    def __init__(self, phases: Phases, *, aloud: bool) -> None:
        self.phases, self.aloud, self.start = phases, aloud, time.perf_counter()

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if "first_epoch" not in self.phases.seconds:
            self.phases.seconds["first_epoch"] = time.perf_counter() - self.start
            if self.aloud:
                print(self.phases, flush=True)


def _leave_early(rank: Rank, trainer: Trainer, checkpoints: Checkpoints, stop: Stop) -> NoReturn:
    """Some rank was asked to stop: write a checkpoint of this moment, unless that is not wanted."""
    kept = "no checkpoint was added, as --on-signal stop says"
    if rank.config.train.on_signal == "checkpoint":
        checkpoints.save(trainer)
        kept = f"a checkpoint of epoch {trainer.epoch} was written"
    checkpoints.finish()
    raise Interrupted(kept, stop.number or signal.SIGTERM)  # another rank may have heard it


def _write_outcome(rank: Rank, trainer: Trainer, checkpoints: Checkpoints) -> None:
    """The best model first, then its predictions, then the result, which says that all is there."""
    trainer.weights.load_state_dict(trainer.best.weights)
    costs = torch.zeros(rank.transport.size, 3, dtype=torch.float64)
    mine = [peak_memory_bytes(), peak_device_bytes(rank.device), checkpoints.seconds]
    costs[rank.transport.rank] = torch.tensor(mine, dtype=torch.float64)
    costs = rank.transport.all_reduce(Key("costs", 0), costs).wait()
    if rank.transport.rank == 0:
        write_tensors(rank.folder / MODEL, trainer.best.weights, {"run": rank.config.id})
    write_predictions(rank.folder / "predictions", rank.model, rank.shard, rank.task)
    if rank.transport.rank == 0:
        peak_memory, peak_device, checkpoint_s = costs.max(0).values.tolist()
        cost = Cost(int(peak_memory), int(peak_device), checkpoint_s, rank.phases.seconds)
        result = result_of(rank.config, rank.part.manifest, rank.task, trainer.best, trainer.records, cost)
        write_document(rank.folder / "result.json", result)


def _recorders(rank: Rank, trainer: Trainer) -> list[MetricsLog | Plain | Live | TensorBoard]:
    log = MetricsLog(rank.folder / "metrics.jsonl", trainer.records)
    return [log, progress(), *([TensorBoard(rank.folder / "tensorboard")] if rank.config.train.tensorboard else [])]


def predict(rank: Rank, out: Path) -> None:
    """Predict with the run's best model."""
    path = rank.folder / MODEL
    fix = f"let the run finish first: fullgraph train --resume {rank.folder}"
    if not path.exists():
        raise InputError(f"{path} is missing; {fix}")
    weights, about = read_tensors(path, fix=fix)
    if about != {"run": rank.config.id}:
        raise Damaged(f"{path} is the model of another run; {fix}")
    try:
        Weights(rank.model, rank.dtype).load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        raise Damaged(f"{path} does not fit this run's model; {fix}") from error
    write_predictions(out, rank.model, rank.shard, rank.task)


def work(folder: Path, job: str, out: str, transport: Transport, stop: Stop, phases: Phases) -> None:
    """One rank's whole job over a transport it was given."""
    try:
        with phases("place"):
            rank = Rank(folder, RunConfig.read(folder), transport, phases)
        if job == "predict":
            predict(rank, Path(out))
        else:
            train(rank, stop, resume=job == "resume")
    except PeerLost:
        raise
    except Exception as error:
        raise explain(error, folder) or error from error


def warm_up(device: str) -> None:
    """Load what all ranks of a machine need, before they are forked: no thread may be started, no device touched."""
    kernels.warm_up(device)


def main() -> None:
    folder, job, out = (*sys.argv[1:], "")[:3]
    transport: Transport = Alone()
    stop = Stop()
    stop.listen()
    tolerate_output()
    try:
        if number("WORLD_SIZE", 1) > 1:
            config = RunConfig.read(Path(folder))
            loop = config.train
            # nccl reads a GPU's memory alone, wherever a rank's rows are.
            device = device_of(loop.device) if loop.backend == "nccl" else rank_device(config, number("RANK", 0))
            transport = join(backend=loop.backend, device=device, timeout=loop.timeout)
        work(Path(folder), job, out, transport, stop, started())
        transport.close()
    except InputError as error:
        leave(EXIT_INPUT, LastWords(kind="input", text=str(error)))
    except PeerLost as error:
        leave(1, LastWords(kind="lost", text=str(error)))
    except Interrupted as error:
        leave(EXIT_STOPPED, LastWords(kind="stopped", text=str(error)))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        leave(1, LastWords(kind="failed", text=text, trace=traceback.format_exc()[-20000:]))
    leave(0)


def leave(status: int, words: LastWords | None = None) -> NoReturn:
    """End at once: while peers are still talking, the backend's threads may not survive an orderly exit."""
    if words is not None:
        words.tell()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
