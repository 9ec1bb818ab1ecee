"""The loop. It never asks which strategy runs."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fullgraph.placement import Shard
from fullgraph.report import EpochRecord, Meter, Tally
from fullgraph.train.config import TrainConfig
from fullgraph.train.evaluate import evaluate
from fullgraph.train.schedule import learning_rate
from fullgraph.train.sync import GradSync
from fullgraph.train.task import Task
from fullgraph.transport import Key


@dataclass
class Best:
    """The best validation score so far, and the model that reached it."""

    epoch: int = -1
    scores: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    waited: int = 0  # evaluations since

    def offer(self, epoch: int, scores: dict[str, float], model: nn.Module) -> None:
        if self.epoch < 0 or math.isnan(self.scores["val"]) or scores["val"] > self.scores["val"]:
            self.epoch, self.scores, self.waited = epoch, scores, 0
            self.weights = copy.deepcopy(model.state_dict())
        else:
            self.waited += 1


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


class Watcher(Protocol):
    """Told of every epoch: logs, progress lines, checkpoints."""

    def __call__(self, trainer: "Trainer", record: EpochRecord) -> None: ...


class Trainer:
    """Full-batch training of a model on a shard."""

    def __init__(self, model: nn.Module, shard: Shard, task: Task, config: TrainConfig, meter: Meter) -> None:
        self.model, self.shard, self.task, self.config, self.meter = model, shard, task, config, meter
        kind = OPTIMIZERS[config.optimizer]
        self.optimizer = kind(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.grad_sync = GradSync(shard.transport)
        self.best = Best()

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.shard.clock.step + 1

    def train_step(self) -> tuple[Tensor, Tally]:
        self.meter.open_step()
        self.shard.clock.tick()
        with self.meter.span("forward_backward"):
            loss = self.shard.executor.step(self.model, self.shard, self.task.loss)
        with self.meter.span("reduce"):
            self.grad_sync(self.model.parameters(), self.epoch)
        with self.meter.span("update"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss, self.meter.close_step()

    def fit(self, watchers: list[Watcher]) -> None:
        while self.epoch < self.config.epochs and not self.exhausted:
            epoch = self.epoch
            lr = learning_rate(self.config, epoch)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            loss, tally = self.train_step()
            scores = self.score(epoch) if self._scores_at(epoch) else {}
            record = self._record(epoch, lr, loss, tally, scores)
            self.shard.clock.losses.append(record.loss)
            for watcher in watchers:
                watcher(self, record)

    def score(self, epoch: int) -> dict[str, float]:
        scores = evaluate(self.model, self.shard, self.task)
        self.best.offer(epoch, scores, self.model)
        return scores

    @property
    def exhausted(self) -> bool:
        """Whether patience with the validation score has run out."""
        return 0 < self.config.patience <= self.best.waited

    def _scores_at(self, epoch: int) -> bool:
        return (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.epochs

    def _record(self, epoch: int, lr: float, loss: Tensor, tally: Tally, scores: dict[str, float]) -> EpochRecord:
        """The ranks' tallies in one sum: each fills its own row."""
        transport = self.shard.transport
        table = torch.zeros(transport.size, 5, dtype=torch.float64)
        table[transport.rank] = torch.tensor(
            [float(loss), tally.step_s, tally.wait_s, tally.halo_bytes, tally.weight_bytes], dtype=torch.float64
        )
        table = transport.all_reduce(Key("meter", self.epoch), table).wait()
        return EpochRecord(
            epoch=epoch,
            loss=float(table[:, 0].sum()),
            lr=lr,
            epoch_s=float(table[:, 1].max()),
            wait_s=float(table[:, 2].max()),
            bytes=int(table[:, 3].sum()),
            grad_bytes=int(table[:, 4].sum()),
            **scores,
        )
