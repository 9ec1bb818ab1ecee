"""One rank of a job that measures several strategies in turn; a launcher starts it with the job's file."""

import gc
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fullgraph.device import device_of
from fullgraph.lab.bench.cell import Cell
from fullgraph.lab.bench.hosts import enter
from fullgraph.lab.bench.matrix import Group, Settings, model_of, strategy_of
from fullgraph.lab.bench.measure import WARM_UP, Contender, Gauge, Turn
from fullgraph.partition import open_part
from fullgraph.report.terminal import tolerate_output
from fullgraph.run import Run, build_trainer
from fullgraph.storage import read_record, write_document
from fullgraph.tasks import metric_name
from fullgraph.train.config import TrainConfig
from fullgraph.train.result import versions
from fullgraph.transport import Recording, SingleRank, Transport, join, number
from fullgraph.values import Value, tree_of
from fullgraph.worker import end_with, threads_per_rank, warm_up

__all__ = ["BASELINE", "FOUND", "Found", "Job", "main", "warm_up"]

BASELINE = "none"  # the strategy whose work is C
FOUND = "found.json"  # beside the job's file
SCHEDULED = 200  # planned epochs of a strategy, if no score sets them
EVALUATIONS = 20  # evaluations per training for a score
SILENCE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Job(Value):
    """A group's strategies, the baseline first, with the shards of each."""

    graph: str
    model: str
    ranks: int
    rate: str
    strategies: tuple[str, ...]
    shards: tuple[str, ...]
    hosts: tuple[str, ...] = ()  # hosts of the ranks; empty: they share this machine
    settings: Settings

    @classmethod
    def of(cls, group: Group, **more: Any) -> "Job":
        return cls(**group._asdict(), **more)

    @property
    def train_config(self) -> TrainConfig:
        """The training config of every strategy: the defaults of `fullgraph train`."""
        own, epochs = self.settings, self.settings.score or SCHEDULED
        every = max(1, epochs // EVALUATIONS)
        return TrainConfig(epochs=epochs, eval_every=every, device=own.device, all_rows=own.all_rows, report=False)


@dataclass(frozen=True, kw_only=True)
class Found(Value):
    """The results of a job: one cell per strategy."""

    cells: tuple[Cell, ...]


class Rank:
    """Measures a job's strategies in the same processes, in turn, round after round."""

    def __init__(self, job: Job, link: Transport, cores: int) -> None:
        self.job, self.link, self.cores = job, link, cores
        self.device = device_of(job.settings.device)
        self.model = model_of(job.model)
        self.gauge = Gauge(link, self.device, job.settings.epochs)

    def measure(self) -> Found:
        plans = list(zip(self.job.strategies, self.job.shards, strict=True))
        cells = self._timed([self._contender(*plan) for plan in plans])
        gc.collect()  # the contenders are done; their memory is for the training for a score
        if self.job.settings.score:
            cells = [self._scored(cell, *plan) for cell, plan in zip(cells, plans, strict=True)]
        return Found(cells=tuple(cells))

    def _contender(self, strategy: str, shards: str) -> Contender:
        """A contender that is ready to be timed: kernels are compiled and late rows exist."""
        part, recording = open_part(shards, self.link.rank), Recording(self.link)
        run = Run(model=self.model, strategy=strategy_of(strategy), train=self.job.train_config)
        with self.gauge.memory() as memory:
            trainer = build_trainer(run, part, recording)
            for _ in range(WARM_UP):
                trainer.train_step()
        return Contender(strategy, part, trainer, recording, memory[0])

    def _timed(self, contenders: list[Contender]) -> list[Cell]:
        rounds = [[self.gauge.turn(c) for c in contenders] for _ in range(self.job.settings.rounds)]
        turns = [list(of_one) for of_one in zip(*rounds, strict=True)]
        compute_s = median(max(turn.own_s) for turn in turns[0])
        return [self._cell(*pair, compute_s) for pair in zip(contenders, turns, strict=True)]

    def _cell(self, contender: Contender, turns: list[Turn], compute_s: float) -> Cell:
        def by_rank(name: str) -> tuple[float, ...]:
            return tuple(median(of_one) for of_one in zip(*(getattr(turn, name) for turn in turns), strict=True))

        def usual(name: str) -> int:
            values: list[float] = [getattr(turn, name) for turn in turns]
            return round(median(values))

        own, memory = self.job.settings, self.gauge.of_ranks(*contender.memory).max(0).values.tolist()
        facts, figures, on_hosts = contender.part.manifest.graph, contender.part.manifest.figures, bool(self.job.hosts)
        return Cell(
            **{name: getattr(self.job, name) for name in Group._fields}, strategy=contender.strategy,
            device=own.device, epochs=own.epochs, rounds=own.rounds, all_rows=own.all_rows,
            threads=torch.get_num_threads(), cores=self.cores,
            epoch_s=median(turn.epoch_s for turn in turns), compute_s=compute_s,
            messages_s=median(turn.messages_s for turn in turns), wait_s=median(max(turn.wait_s) for turn in turns),
            sum_wait_s=median(max(turn.sum_wait_s) for turn in turns),
            processor_s=median(max(turn.processor_s) for turn in turns), round_s=tuple(t.epoch_s for t in turns),
            rank_wait_s=by_rank("wait_s"), rank_thread_s=by_rank("thread_s"), rank_processor_s=by_rank("processor_s"),
            bytes=usual("bytes"), weight_bytes=usual("weight_bytes"),
            wire_bytes=usual("wire_bytes") if on_hosts else None,
            wire_packets=usual("wire_packets") if on_hosts else None,
            peak_memory_bytes=int(memory[0]), peak_device_bytes=int(memory[1]),
            nodes=facts.nodes, arcs=facts.arcs, features=facts.features, classes=facts.classes,
            rank_rows=tuple(figures.nodes), rank_arcs=tuple(figures.edges), rank_halo=tuple(figures.halo),
            versions=versions(),
        )  # fmt: skip

    def _scored(self, cell: Cell, strategy: str, shards: str) -> Cell:
        """Train from the start, and add the best validation score and the seconds until it to the cell."""
        run = Run(model=self.model, strategy=strategy_of(strategy), train=self.job.train_config)
        trainer = build_trainer(run, open_part(shards, self.link.rank), self.link)
        trainer.fit([])
        best = trainer.best
        spent = sum(record.epoch_s for record in trainer.records[: best.epoch])
        return replace(
            cell, score_epochs=self.job.settings.score, metric=metric_name(trainer.task), val=best.scores.get("val"),
            best_epoch=best.epoch, val_s=spent,
        )  # fmt: skip


def main(classes: str = "") -> None:
    """Do one rank's part of the job in the file that this process was given."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # there is nothing to save
    tolerate_output()
    end_with(lambda: _work(Path(sys.argv[1])))


def share_of(cores: list[int], host: int, hosts: int) -> list[int]:
    """A host's consecutive cores; one shared core if there are fewer cores than hosts."""
    first, end = (number * len(cores) // hosts for number in (host, host + 1))
    return cores[first:end] or [cores[first]]


def _work(path: Path) -> None:
    job = read_record(Job, path, fix="start the campaign again")
    cores = sorted(os.sched_getaffinity(0))
    if job.hosts:
        host = number("RANK", 0)
        enter(job.hosts[host])
        os.sched_setaffinity(0, share_of(cores, host, len(job.hosts)))
    torch.set_num_threads(1 if job.hosts else threads_per_rank())
    link: Transport = SingleRank()
    if job.ranks > 1:
        link = join(device=device_of(job.settings.device), timeout=SILENCE_S)
    found = Rank(job, link, len(cores)).measure()
    if link.rank == 0:
        write_document(path.with_name(FOUND), tree_of(found))
    link.close()
