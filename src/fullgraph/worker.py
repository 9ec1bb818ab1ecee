"""One rank of a run:  python -m fullgraph.worker FOLDER train|resume|predict [OUT]."""

import json
import os
import sys
import time
import traceback
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import load_file, save_file

from fullgraph import recipes
from fullgraph.errors import InputError, storage_error
from fullgraph.nn import Chain, spec_of
from fullgraph.partition import open_part
from fullgraph.placement import Shard
from fullgraph.report import Meter, MetricsLog, peak_memory_bytes, read_metrics, write_json
from fullgraph.train.checkpoint import Checkpoints
from fullgraph.train.config import RunConfig
from fullgraph.train.launch import EXIT_INPUT
from fullgraph.train.predict import write_predictions
from fullgraph.train.progress import Live, Plain, progress
from fullgraph.train.result import result_of
from fullgraph.train.task import Task, task_of
from fullgraph.train.tensorboard import TensorBoard
from fullgraph.train.trainer import Trainer, Watcher
from fullgraph.transport import Alone, Counting, Key, PeerLost, Transport, join


class Rank:
    """What every job of a rank needs: its shard, a model, the task."""

    def __init__(self, folder: Path, config: RunConfig, transport: Transport) -> None:
        self.folder, self.config, self.meter = folder, config, Meter()
        torch.set_num_threads(config.train.threads or threads_per_rank())
        self.transport = Counting(transport, self.meter.sent, self.meter.waited)
        recipe = recipes.make(**config.strategy)
        spec = spec_of(config.model)
        self.part = open_part(shards_of(folder, config), transport.rank, split=config.split)
        facts = self.part.manifest.graph
        self.task: Task = task_of(multilabel=facts.multilabel, classes=facts.classes, metric=config.train.metric)
        dtype = getattr(torch, config.train.dtype)
        device = device_of(recipe.devices[transport.rank] if recipe.devices else config.train.device)
        for other in recipe.layout.get("aggregate_on", ()):
            device_of(other)
        placement = recipe.placement(
            **recipe.layout,
            inductive=config.train.inductive,
            precompute=config.train.precompute and not spec.encodes,
            narrow_first=recipe.narrow_first,
            isolated=recipe.isolated,
            seed=config.train.seed,
            dtype=dtype,
            device=device,
        )
        wires = recipe.wires(epochs=config.train.epochs, layers=spec.graph_layers)
        self.shard: Shard = placement.place(self.part, self.transport, wires, spec.aggregation)
        self.model: Chain = spec.build(facts.features, facts.classes, seed=config.train.seed, dtype=dtype).to(device)


def shards_of(folder: Path, config: RunConfig) -> Path:
    return Path(config.shards) if config.shards else folder / "shards"


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
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def threads_per_rank() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def train(rank: Rank, *, resume: bool) -> None:
    """Train to the end; rank 0 keeps the record."""
    trainer = Trainer(rank.model, rank.shard, rank.task, rank.config.train, rank.meter)
    checkpoints = Checkpoints(rank.folder / "checkpoints", rank.transport, rank.config.train.checkpoint_every)
    if resume:
        checkpoints.restore(trainer)
    with ExitStack() as stack:
        recorders = _recorders(rank, trainer.epoch) if rank.transport.rank == 0 else []
        watchers: list[Watcher] = [stack.enter_context(closing(recorder)) for recorder in recorders]
        trainer.fit([*watchers, checkpoints])
    rank.model.load_state_dict(trainer.best.weights)
    peaks = torch.zeros(rank.transport.size, dtype=torch.int64)
    peaks[rank.transport.rank] = peak_memory_bytes()
    peaks = rank.transport.all_reduce(Key("peaks", 0), peaks).wait()
    write_predictions(rank.folder / "predictions", rank.model, rank.shard, rank.task)
    if rank.transport.rank == 0:
        save_model(rank.model, rank.folder / "model.safetensors")
        records = read_metrics(rank.folder / "metrics.jsonl")
        result = result_of(rank.config, rank.part.manifest, rank.task, trainer.best, records, int(peaks.max()))
        write_json(rank.folder / "result.json", result)


def _recorders(rank: Rank, epoch: int) -> list[MetricsLog | Plain | Live | TensorBoard]:
    log = MetricsLog(rank.folder / "metrics.jsonl", resume_at=epoch)
    return [log, progress(), *([TensorBoard(rank.folder / "tensorboard")] if rank.config.train.tensorboard else [])]


def predict(rank: Rank, out: Path) -> None:
    """Predict with the run's best model."""
    path = rank.folder / "model.safetensors"
    if not path.exists():
        raise InputError(f"{path} is missing; let the run finish first: fullgraph train --resume {rank.folder}")
    rank.model.load_state_dict(load_file(path))
    write_predictions(out, rank.model, rank.shard, rank.task)


def save_model(model: Chain, path: Path) -> None:
    temporary = path.with_name(f".{path.name}")
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, temporary)
    os.replace(temporary, path)


def work(folder: Path, job: str, out: str, transport: Transport) -> None:
    """One rank's whole job over a transport it was given."""
    try:
        rank = Rank(folder, RunConfig.read(folder), transport)
        if job == "predict":
            predict(rank, Path(out))
        else:
            train(rank, resume=job == "resume")
    except Exception as error:
        full = storage_error(error, folder)
        raise full or error from error


def main() -> None:
    folder, job, out = (*sys.argv[1:], "")[:3]
    transport: Transport = Alone()
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            config = RunConfig.read(Path(folder)).train
            transport = join(backend=config.backend, device=device_of(config.device), timeout=config.timeout)
        work(Path(folder), job, out, transport)
        transport.close()
    except InputError as error:
        _tell_launcher(str(error))
        leave(EXIT_INPUT)
    except PeerLost as error:
        _tell_launcher(str(error))
        # Let the launcher see first the rank that really died.
        time.sleep(5)
        leave(1)
    except KeyboardInterrupt:
        leave(130)  # the launcher says it
    except Exception as error:
        traceback.print_exc()
        _tell_launcher(f"{type(error).__name__}: {error}")
        leave(1)


def leave(status: int) -> NoReturn:
    """End at once: while peers are still talking, the backend's threads may not survive an orderly exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _tell_launcher(text: str) -> None:
    """Leave the text where torch's launcher looks for it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with suppress(OSError):
            Path(path).write_text(json.dumps({"message": text, "timestamp": int(time.time())}))


if __name__ == "__main__":
    main()
