"""One rank of a run:  python -m fullgraph.worker FOLDER train|resume|predict [ORDER]."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from fullgraph.device import device_of, ignore_missing_driver, peak_bytes
from fullgraph.errors import Damaged, InputError, Interrupted, explain
from fullgraph.ops import kernels
from fullgraph.own_code import own_code
from fullgraph.partition import open_part, read_names
from fullgraph.proc import go_before_the_launcher, num_cores
from fullgraph.reference import load, unpack
from fullgraph.remarks import averaged, follows_drift, late_halos
from fullgraph.report import PAGE, EpochRecord, MetricsLog, Phases, peak_memory_bytes
from fullgraph.report.evaluation import Evaluation
from fullgraph.report.settings import settings_of
from fullgraph.report.terminal import tolerate_output, tolerated
from fullgraph.resources import require_addresses
from fullgraph.run import Run, build_trainer, devices_of
from fullgraph.storage import read_tensors, write_document, write_tensors
from fullgraph.tasks import task_for
from fullgraph.train.callbacks import Callbacks, StaleWarning, fixes_for
from fullgraph.train.checkpoint import Checkpoints
from fullgraph.train.launch import EXIT_INPUT, EXIT_STOPPED
from fullgraph.train.precision import Weights
from fullgraph.train.predict import Order, write_ids, write_labels, write_predictions
from fullgraph.train.profiler import Profiler
from fullgraph.train.progress import Progress
from fullgraph.train.rank_io import ExitReport, Stop, started
from fullgraph.train.result import Cost, result_of, versions
from fullgraph.train.tracing import Tracer
from fullgraph.train.trackers import About, Tracking
from fullgraph.train.trainer import Trainer, Watcher
from fullgraph.transport import Key, PeerLost, SingleRank, Transport, agree, join, number, rank_table
from fullgraph.values import read_value, tree_of
from fullgraph.words import count

MODEL = "model.safetensors"
WRITE_PAGE = "fullgraph.lab.html:write_report"  # by reference: training must import nothing of the lab


class Rank:
    """The run, the part and the trainer of a rank, which every job needs."""

    def __init__(self, folder: Path, transport: Transport, phases: Phases, shards: str = "", checksum: int = 0) -> None:
        """shards: the shards of another graph, if it is not the run's own. checksum: the checksum of their manifest."""
        self.folder, self.phases, self.transport = folder, phases, transport
        agree(transport, lambda: {**Run.read(folder).facts(), **versions()}, "read")
        run = Run.read(folder)
        self.run = run.on_shards(shards, checksum) if shards else run
        torch.set_num_threads(self.run.train.threads or threads_per_rank())
        self.shards = self.run.shards_in(folder)
        self.part = open_part(self.shards, transport.rank, split=self.run.column)
        if self.part.manifest.checksum != self.run.shards_checksum:
            raise InputError(f"{self.shards} are not the shards this run began with; restore those, or start a new run")
        self.trainer = build_trainer(self.run, self.part, transport, folder)
        self.transport = self.trainer.shard.transport  # the same transport, with counters
        self.leads = transport.rank == 0  # rank 0 writes the record
        if self.trainer.shard.memory is not None and self.leads:
            phases.display.line(str(self.trainer.shard.memory))


def threads_per_rank() -> int:
    return max(1, num_cores() // max(1, number("LOCAL_WORLD_SIZE", 1)))


def train(rank: Rank, stop: Stop, *, resume: bool) -> None:
    """Train to the end, or until a signal."""
    first_epoch = FirstEpoch(rank.phases)
    trainer, config = rank.trainer, rank.run.train
    to, checksum = rank.folder / "checkpoints", rank.run.shards_checksum
    checkpoints = Checkpoints(to, rank.transport, config.checkpoint_every, rank.run.id, checksum)
    if resume:
        checkpoints.restore(trainer)
    trainer.phase = rank.phases.display.phase
    if hasattr(trainer.model, "phase"):  # a user's model, which is checked in the first step
        trainer.model.phase = trainer.phase  # type: ignore[assignment]
    with ExitStack() as stack:
        recorders = _recorders(rank, resume=resume) if rank.leads else []
        watchers: list[Watcher] = [stack.enter_context(closing(recorder)) for recorder in recorders]
        if rank.leads:
            watchers += [partial(_note_choices, rank), *_stale_warnings(rank)]
        callbacks = stack.enter_context(closing(Callbacks(config.callbacks, rank.transport)))
        callbacks.replay(trainer)
        profiler = Profiler(trainer, rank.part, rank.folder) if config.report else None
        tracer = Tracer(trainer, rank.folder) if config.trace else None
        looks = [look for look in (profiler, tracer) if look is not None]
        # a backward pass shows no frame of the user's code
        with own_code(rank.run.model, config.loss, torch_alone=True):
            finished = trainer.fit([first_epoch, *looks, *watchers, callbacks, checkpoints], stop)
    kept = "" if finished else _kept(trainer, checkpoints)
    checkpoints.finish()
    if finished:
        _write_outcome(rank, checkpoints)
    for look in looks:
        look.finish()
    _report(rank)
    if not finished:
        raise Interrupted(kept, stop.number or signal.SIGTERM)  # the signal may have reached another rank


def _report(rank: Rank) -> None:
    """Write report.html; a failure is only noted, because the run matters more."""
    if rank.leads and rank.run.train.report:
        with tolerated(rank.folder / PAGE):
            load(WRITE_PAGE)(rank.folder, records=rank.trainer.records)


def _note_choices(rank: Rank, trainer: Trainer, record: EpochRecord) -> None:
    """Write measured choices into the config, so that the run can be repeated."""
    choices = trainer.shard.executor.choices()
    if any(getattr(rank.run.strategy, name) != value for name, value in choices.items()):
        rank.run = replace(rank.run, strategy=replace(rank.run.strategy, **choices))
        rank.run.write(rank.folder)


def _stale_warnings(rank: Rank) -> list[Watcher]:
    """The watcher of the loss, if the run reads late rows and does not measure by itself when they are safe."""
    if not late_halos(rank.run) or follows_drift(rank.run):
        return []
    return [StaleWarning(fixes_for(method=rank.part.manifest.method, averaged=averaged(rank.run)))]


class FirstEpoch:
    """Records the end of the first epoch, with kernel compilation; rank 0 then prints how the run started."""

    def __init__(self, phases: Phases) -> None:
        self.phases, self.start = phases, time.perf_counter()

    def __call__(self, trainer: Trainer, record: EpochRecord) -> None:
        if "first_epoch" not in self.phases.seconds:
            self.phases.seconds["first_epoch"] = time.perf_counter() - self.start
            self.phases.display.line(str(self.phases))
            hosts = trainer.shard.full.hosts
            if hosts is not None:
                self.phases.display.line(
                    f"between {count(len(set(hosts)), 'host')}, a row crosses once for all ranks of a host "
                    "(-o by_host=false: once per rank)"
                )


def _kept(trainer: Trainer, checkpoints: Checkpoints) -> str:
    """After a signal: write a checkpoint unless the user declined it, and say which one was written."""
    if trainer.config.on_signal != "checkpoint":
        return "no checkpoint was added, as --on-signal stop says"
    checkpoints.save(trainer)
    return f"a checkpoint of epoch {trainer.epoch} was written"


def _write_outcome(rank: Rank, checkpoints: Checkpoints) -> None:
    """Write the best model, then its predictions, then the result, whose presence means that all is complete."""
    trainer, transport = rank.trainer, rank.transport
    trainer.weights.load_state_dict(trainer.best.weights)
    live = trainer.shard.train.live
    device = trainer.shard.train.y.device
    mine = [peak_memory_bytes(), peak_bytes(device), checkpoints.seconds, *live.values()]
    costs = rank_table(transport, Key("costs", 0), mine)
    best = trainer.weights.whole(trainer.best.weights)
    if rank.leads:
        write_tensors(rank.folder / MODEL, best, {"run": rank.run.id})
    out = _write_predictions(rank, Order(out=str(rank.folder / "predictions")))
    _evaluate(rank, out)
    if rank.leads:
        peak_memory, peak_device, checkpoint_s = costs[:, :3].max(0).values.tolist()
        rows = dict(zip(map(str, live), costs[:, 3:].sum(0).int().tolist(), strict=True))
        cost = Cost(int(peak_memory), int(peak_device), checkpoint_s, rank.phases.seconds, rows)
        result = result_of(rank.run.strategy.name, rank.run.model.name, rank.part.manifest, trainer, cost)
        write_document(rank.folder / "result.json", result)


def _recorders(rank: Rank, *, resume: bool) -> list[MetricsLog | Progress | Tracking]:
    log = MetricsLog(rank.folder / "metrics.jsonl", rank.trainer.records)
    shown = Progress(rank.phases.display, rank.trainer)
    names = [rank.run.train.log] if rank.run.train.log != "none" else []
    names += ["tensorboard"] if rank.run.train.tensorboard and "tensorboard" not in names else []
    about = About(rank.folder, rank.run.id, settings_of(tree_of(rank.run)), resume)
    return [log, shown, *(Tracking(name, about) for name in names)]


class Loads(Protocol):
    """Any object that loads a state dict: a module, or a trainer's weights."""

    def load_state_dict(self, state: dict[str, Tensor]) -> object: ...


def model_file(folder: Path) -> Path:
    """The path of a finished run's best weights."""
    if not (folder / MODEL).exists():
        raise InputError(f"{folder / MODEL} is missing; {_finish(folder)}")
    return folder / MODEL


def _finish(folder: Path) -> str:
    return f"let the run finish first: fullgraph train --resume {folder}"


def load_best(into: Loads, folder: Path, run: Run) -> None:
    """Load a run's best weights into its model."""
    path, fix = model_file(folder), _finish(folder)
    weights, about = read_tensors(path, fix=fix)
    if about != {"run": run.id}:
        raise Damaged(f"{path} is the model of another run; {fix}")
    try:
        into.load_state_dict(into.own_rows(weights) if isinstance(into, Weights) else weights)
    except (RuntimeError, KeyError) as error:
        raise Damaged(f"{path} does not fit this run's model; {fix}") from error


def predict(rank: Rank, order: Order) -> None:
    """Predict with the run's best model."""
    if order.shards and rank.trainer.weights.tables is not None:
        names = ", ".join(rank.trainer.weights.tables)
        raise InputError(
            f"the model has a row for each node of its own graph ({names}); it cannot predict for another graph"
        )
    load_best(rank.trainer.weights, rank.folder, rank.run)
    _write_predictions(rank, order)


def _evaluate(rank: Rank, out: Tensor) -> None:
    """Write evaluation.json, if the task counts what is right; a user's own task may not."""
    count_right = getattr(rank.trainer.task, "evaluation", None)
    found: Evaluation | None = count_right(out, rank.trainer.shard) if count_right is not None else None
    if rank.leads and found is not None:
        replace(found, names=rank.part.manifest.graph.class_names).write(rank.folder)


def _write_predictions(rank: Rank, order: Order) -> Tensor:
    """Write every node's prediction; return the model's output for this rank's rows."""
    with rank.phases.display.phase("predicting every node"):
        facts = rank.part.manifest.graph
        class_names, spec = facts.class_names, task_for(rank.run.train.task, facts, cut=True)
        out = write_predictions(order, rank.trainer.model, rank.trainer.shard, rank.trainer.task, spec, class_names)
        if rank.leads:
            write_ids(order, read_names(rank.shards))
            write_labels(order, class_names)
    return out


def work(folder: Path, job: str, order: str, transport: Transport, stop: Stop, phases: Phases) -> None:
    """Do one rank's whole job over a given transport."""
    try:
        with own_code():
            wanted = read_value(Order, json.loads(order), "order") if order else Order(out="")
            with phases("place", f"placing the graph on {count(transport.size, 'rank')}"):
                rank = Rank(folder, transport, phases, wanted.shards, wanted.shards_checksum)
            if job == "predict":
                predict(rank, wanted)
            else:
                train(rank, stop, resume=job == "resume")
    except PeerLost:
        raise
    except Exception as error:
        raise explain(error, folder) or error from error
    finally:
        phases.display.close()


def warm_up(device: str) -> None:
    """Load what all ranks of a machine need, before they are forked: start no thread, touch no device."""
    kernels.warm_up(device)


def main(classes: str = "") -> None:
    """classes: the user's classes that no file holds, serialised."""
    stop = Stop()
    stop.listen()
    go_before_the_launcher()
    tolerate_output()
    ignore_missing_driver()
    phases = started()
    end_with(lambda: _main(classes, stop, phases))


def _main(classes: str, stop: Stop, phases: Phases) -> None:
    folder, job, order = (*sys.argv[1:], "")[:3]
    transport: Transport = SingleRank()
    require_addresses()
    unpack(classes)
    if number("WORLD_SIZE", 1) > 1:
        run = Run.read(Path(folder))
        loop = run.train
        # nccl reads only a GPU's memory, wherever a rank's rows are.
        nccl = loop.backend == "nccl"
        device = device_of(loop.device) if nccl else devices_of(run, number("RANK", 0))[0]
        with phases("place", "meeting the other ranks"):
            transport = join(backend=loop.backend, device=device, timeout=loop.timeout)
    work(Path(folder), job, order, transport, stop, phases)
    transport.close()


def end_with(work: Callable[[], None]) -> NoReturn:
    """Do a rank's work and end; tell the launcher that it is done, or why not."""
    try:
        work()
    except InputError as error:
        leave(EXIT_INPUT, ExitReport(kind="input", text=str(error), trace=getattr(error, "trace", "")))
    except PeerLost as error:
        leave(1, ExitReport(kind="lost", text=str(error)))
    except Interrupted as error:
        leave(EXIT_STOPPED, ExitReport(kind="stopped", text=str(error)))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        leave(1, ExitReport(kind="failed", text=text, trace=traceback.format_exc()[-20000:]))
    leave(0, ExitReport(kind="done"))


def leave(status: int, report: ExitReport) -> NoReturn:
    """End at once: the backend's threads may not survive an orderly exit while peers still communicate."""
    report.write()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
