"""The training loop, which never asks which strategy runs.

Evaluation is exact, on the whole graph: fresh halos, full precision, no dropout.
"""

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fullgraph.device import is_accelerator
from fullgraph.errors import Diverged, InputError
from fullgraph.exchange.lateness import relative
from fullgraph.nn import Chain
from fullgraph.ops.pool import POOL
from fullgraph.own_code import own_code, unfit
from fullgraph.placement import Shard
from fullgraph.report import EpochRecord, Meter, Tally
from fullgraph.tasks import Scores, Task, smaller_is_better
from fullgraph.train.config import TrainConfig
from fullgraph.train.optimizer import learning_rate, works_by_number
from fullgraph.train.precision import Weights, rows_dtype
from fullgraph.train.sync import GradSync, holds_own_rows
from fullgraph.transport import Key, cost_of, rank_table


def logits_of(model: nn.Module, shard: Shard) -> Tensor:
    """Return logits of this rank's rows, as one process would compute them."""
    shard.eval_clock.tick()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = shard.full.run(model)
    finally:
        model.train(was_training)
    return logits


def evaluate(model: nn.Module, shard: Shard, task: Task) -> Scores:
    """Return the task's score on each split; the same on every rank."""
    return task.scores(logits_of(model, shard), shard)


@dataclass
class Best:
    """The best validation score so far, and the weights that reached it."""

    epoch: int = 0  # counted from 1; 0: no score yet
    scores: Scores = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    waited: int = 0  # evaluations since the best one

    def offer(self, epoch: int, scores: Scores, weights: Weights, *, smaller: bool = False) -> None:
        """smaller: True if smaller scores are better."""
        old, new = self.scores.get("val"), scores["val"]
        if old is None or (new is not None and (new < old if smaller else new > old)):
            self.epoch, self.scores, self.waited = epoch, scores, 0
            self.weights = copy.deepcopy(weights.state_dict())
        else:
            self.waited += 1


class Watcher(Protocol):
    """Called after every epoch: logs, progress lines, checkpoints."""

    def __call__(self, trainer: "Trainer", record: EpochRecord) -> None: ...


class Trainer:
    """Full-batch training of a model on a shard."""

    def __init__(self, model: nn.Module, shard: Shard, task: Task, config: TrainConfig, meter: Meter) -> None:
        self.model, self.shard, self.task, self.config, self.meter = model, shard, task, config, meter
        shard.clock.meter = meter if meter.detail else None
        if config.checkpoint_layers:
            checkpoint_layers(model)
        self.weights = Weights(model, rows_dtype(config.precision, getattr(torch, config.dtype)))
        with own_code(config.optimizer):
            self.optimizer: Optimizer = config.optimizer.build(
                _grouped(self.weights.masters, config), lr=config.lr, weight_decay=config.weight_decay
            )
            groups = self.optimizer.param_groups
        if self.weights.tables is not None and not works_by_number(self.optimizer):
            raise InputError(
                f"optimizer {type(self.optimizer).__name__} may combine rows of different nodes, and "
                f"{', '.join(self.weights.tables)} has a row per node, spread over ranks; use adam, adamw or sgd"
            )
        if not isinstance(groups, list) or not all("params" in group for group in groups):
            raise unfit(config.optimizer, "has no list of groups: call super().__init__(params, defaults)")
        self.grad_sync = GradSync(shard.train.owners, may_lack=getattr(model, "may_lack_gradients", False))
        self.best = Best()
        self.records: list[EpochRecord] = []
        self.ended_by_callback = False  # set by a callback
        self.rank_seconds: list[list[float]] = []  # (whole step, waiting) of each rank's last step
        self.phase: Callable[[str], AbstractContextManager[object]] = nullcontext  # displays a long operation

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return self.shard.clock.step + 1

    def train_step(self) -> tuple[Tensor, Tally]:
        self.meter.open_step(self.epoch)
        self.shard.clock.tick()
        with self.shard.clock.making_way():
            with self.meter.span("forward_backward"), self._sums_under_way():
                loss = self.shard.executor.step(self.model, self.shard, self.task.loss)
            with self.meter.span("sum"):
                self.grad_sync(self.weights.gather(), self.epoch)
        with self.meter.span("update"), own_code(self.config.optimizer):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.weights.publish()
        return loss, self.meter.close_step()

    def _sums_under_way(self) -> AbstractContextManager[None]:
        """Enclose the backward pass; send gradients during it if each is complete and has its final type."""
        config, weights = self.config, self.weights
        on_cpu = not (is_accelerator(config.device) or any(is_accelerator(m.device) for m in weights.masters))
        complete = self.shard.executor.one_pass and not config.checkpoint_layers
        if on_cpu and complete and weights.in_full:
            return self.grad_sync.under_way(self.model, self.epoch)
        return nullcontext()

    def fit(self, watchers: list[Watcher], stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until `stop` of some rank returns True; return whether the end was reached."""
        try:
            return self._fit(watchers, stop)
        finally:
            POOL.clear()

    def _fit(self, watchers: list[Watcher], stop: Callable[[], bool]) -> bool:
        self.meter.other_bytes = 0.0  # bytes of the set-up belong to no epoch
        while self.epoch < self.config.epochs and not self.exhausted:
            lr = learning_rate(self.config, self.epoch)
            with own_code(self.config.optimizer):
                for group in self.optimizer.param_groups:
                    group["lr"] = lr
            loss, tally = self.train_step()
            scores = self.score() if self._scores_now() else {}
            record, stopping = self._record(lr, loss, tally, scores, stop())
            self.records.append(record)
            self.shard.clock.note(record.loss, record.drift)
            for watcher in watchers:
                watcher(self, record)
            if stopping and self.epoch < self.config.epochs:
                return False
        if not self.best.epoch:  # a callback ended the run before the first evaluation
            self.score()
        return True

    def check_finite(self) -> None:
        """Raise Diverged if weights, or statistics of a norm, are not finite."""
        if not all(bool(value.isfinite().all()) for value in self.weights.state_dict().values()):
            raise Diverged(f"weights are not finite after epoch {self.epoch}: {likely_cause(self)}")

    def score(self) -> Scores:
        self.check_finite()
        with self.phase("evaluating"):
            scores = evaluate(self.model, self.shard, self.task)
        self.best.offer(self.epoch, scores, self.weights, smaller=smaller_is_better(self.task.metric))
        return scores

    @property
    def exhausted(self) -> bool:
        """Whether the patience for a better validation score is over, or a callback ended the run."""
        return self.ended_by_callback or 0 < self.config.patience <= self.best.waited

    def _scores_now(self) -> bool:
        return self.epoch % self.config.eval_every == 0 or self.epoch == self.config.epochs

    def _record(self, lr: float, loss: Tensor, tally: Tally, scores: Scores, stop: bool) -> tuple[EpochRecord, bool]:
        """Combine all ranks' tallies, and whether a rank stops, in one sum: each rank fills its own row."""
        transport = self.shard.transport
        copies = transport.size // self.shard.train.owners.size
        mine = [float(loss) / copies, tally.step_s, tally.wait_s, tally.halo_bytes, tally.weight_bytes, stop]
        mine += [*self.shard.clock.lateness.take(), self.meter.other_bytes, tally.waited_for("rows")]
        mine += self.shard.clock.drift.take()
        table = rank_table(transport, Key("meter", self.epoch), mine)
        self.meter.other_bytes = 0.0  # the bytes of this sum are added below
        self.rank_seconds = table[:, 1:3].tolist()
        total = float(table[:, 0].sum())
        if not math.isfinite(total):
            raise Diverged(f"the loss became {total} in epoch {self.epoch}: {likely_cause(self)}")
        record = EpochRecord(
            epoch=self.epoch,
            loss=total,
            lr=lr,
            epoch_s=float(table[:, 1].max()),
            wait_s=float(table[:, 2].max()),
            bytes=int(table[:, 3].sum()),
            grad_bytes=round(float(table[:, 4].sum())),
            other_bytes=round(float(table[:, 8].sum()) + transport.size * cost_of(table.nbytes, transport.size).bytes),
            late=relative(*table[:, 6:8].sum(0).tolist()),
            row_wait_s=float(table[:, 9].max()),
            drift=relative(*table[:, 10:12].sum(0).tolist()),
            **scores,
        )
        return record, bool(table[:, 5].any())


def checkpoint_layers(model: nn.Module) -> None:
    """Make a model keep only the rows between its layers."""
    if not isinstance(model, Chain):
        raise InputError(
            f"--checkpoint-layers needs a chain of blocks (fullgraph.nn.Chain), which {type(model).__name__} is not; "
            "leave it out"
        )
    model.checkpoint_layers = True


def likely_cause(trainer: Trainer) -> str:
    """Name a likely reason for non-finite numbers, from the run's input and learning rate."""
    x, lr = trainer.shard.train.x, trainer.config.lr
    values = x if isinstance(x, Tensor) else x.weight
    largest = max(-float(values.min()), float(values.max())) if values is not None and values.numel() else 0.0
    if lr > 0.1:
        return f"the learning rate {lr:g} is high; start again with --lr {max(lr / 10, 1e-3):.2g} or less"
    if largest > 1e3:
        return f"features reach {largest:.3g}; start again with --features standard or row"
    return f"start again with a lower --lr than {lr:g}, with --norm layer, or with --features standard"


def _grouped(weights: list[nn.Parameter], config: TrainConfig) -> list[Any]:
    """The weights in their order; as groups with their weight decay if learned rows have another one."""
    decay = config.embedding_weight_decay
    if decay is None:
        return list(weights)
    runs = groupby(weights, holds_own_rows)
    return [{"params": list(run), "weight_decay": decay if own else config.weight_decay} for own, run in runs]
