"""Tasks with one target per node: a class, a set of classes, or real numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.partition import GraphFacts, Part
from fullgraph.placement import Placement, Shard
from fullgraph.report.evaluation import Evaluation
from fullgraph.tasks.base import (
    SPLITS,
    Predicted,
    Scores,
    Table,
    Task,
    check_logits,
    chosen_loss,
    chosen_metric,
    scored_by,
    table_of,
)
from fullgraph.tasks.evaluation import evaluation_of
from fullgraph.tasks.losses import MeanLoss, RowLoss, full
from fullgraph.tasks.metrics import Metric
from fullgraph.transport import Key
from fullgraph.values import Value


class OfNodes(Value):
    """The common part of these tasks; a user's own task adds `predicts`, `out_width` and `build`."""

    usual: ClassVar[tuple[str, dict[str, Any]]] = ("sage", {})

    def check(self, facts: GraphFacts, *, cut: bool) -> None:
        if cut and facts.pairs:
            raise InputError(f"{facts.name} was cut for link prediction; use --task link, or partition it again")

    def check_placement(self, placement: Placement, *, inductive: bool) -> None:
        """Accept every placement."""

    def prepared(self, graph: Graph, seed: int) -> Graph:
        graph.need_labels()
        return graph if graph.pairs is None else graph.with_pairs(None)

    def equip(self, model: nn.Module, *, seed: int, dtype: torch.dtype) -> None:
        """Add nothing to the model."""


@dataclass(frozen=True, kw_only=True)
class Classification(OfNodes):
    """One class per node; or, if the labels are 0/1 columns, a set of classes."""

    predicts: ClassVar[tuple[Predicted, ...]] = (
        Predicted(name="classes", prefix="class_", classes="values"),
        Predicted(name="probabilities", prefix="p_", classes="columns"),
    )

    def check(self, facts: GraphFacts, *, cut: bool) -> None:
        super().check(facts, cut=cut)
        if facts.real and cut:
            raise InputError(f"{facts.name} was cut with real numbers as labels: use --task regression, or partition "
                             "it again with --task classification")  # fmt: skip

    def prepared(self, graph: Graph, seed: int) -> Graph:
        """Turn floats that are whole numbers into classes; only an explicit request comes here."""
        graph = super().prepared(graph, seed)
        return graph.as_classes() if graph.real else graph

    def out_width(self, facts: GraphFacts) -> int:
        return facts.classes

    def build(
        self, facts: GraphFacts, *, metric: Metric | str, loss: RowLoss | str, seed: int, part: Part, shard: Shard,
        model: nn.Module,
    ) -> Task:  # fmt: skip
        return node_task(classes=facts.classes, multilabel=facts.multilabel, metric=metric, loss=loss, model=model)


@dataclass(frozen=True, kw_only=True)
class Regression(OfNodes):
    """One or several real numbers per node."""

    predicts: ClassVar[tuple[Predicted, ...]] = (Predicted(name="values", prefix="value_"),)

    def out_width(self, facts: GraphFacts) -> int:
        return facts.classes if facts.real or facts.multilabel else 1

    def build(
        self, facts: GraphFacts, *, metric: Metric | str, loss: RowLoss | str, seed: int, part: Part, shard: Shard,
        model: nn.Module,
    ) -> Task:  # fmt: skip
        return node_task(classes=self.out_width(facts), real=True, metric=metric, loss=loss, model=model)


def node_task(
    *, classes: int, multilabel: bool = False, real: bool = False, metric: Metric | str = "auto",
    loss: RowLoss | str = "auto", model: nn.Module | None = None,
) -> "NodeTask":  # fmt: skip
    """The default task for such labels, or with the requested loss and metric if they fit; `model` learns it."""
    if real:
        metrics, losses, what = ["rmse", "mae", "r2"], ["mse", "mae", "huber"], "real numbers"
    elif multilabel:
        metrics, losses, what = ["micro_f1", "roc_auc"], ["bce"], "multi-label data"
    else:
        metrics, losses, what = ["accuracy"], ["cross_entropy"], f"{classes}-class data"
        metrics += ["roc_auc"] if classes == 2 else []
    return NodeTask(
        chosen_metric(metric, metrics, what),
        MeanLoss(chosen_loss(loss, losses, what)),
        _columns if real else _as_they_are,
        _values if real else _sets if multilabel else _classes,
        partial(check_logits, model, columns=classes, what=what) if model is not None else None,
        kind="numbers" if real else "sets" if multilabel else "classes",
    )


class NodeTask:
    """A loss and a metric over rows that have one target each."""

    def __init__(
        self, metric: Metric, loss: MeanLoss, target: Callable[[Tensor, Tensor], Tensor],
        predicted: Callable[[Tensor], dict[str, Tensor]], check: Callable[..., None] | None = None,
        *, kind: str = "",
    ) -> None:  # fmt: skip
        """kind: how `evaluation` counts rows; empty: it does not."""
        self.metric, self._loss, self._target, self._predicted, self._check = metric, loss, target, predicted, check
        self.kind = kind

    def loss(self, logits: Tensor, target: Tensor, count: int) -> Tensor:
        if self._check is not None:
            self._check(logits, trains=True)
        logits = full(logits)
        return self._loss(logits, self._target(logits, target), count)

    def placed(self, shard: Shard) -> Shard:
        return shard

    def scores(self, out: Tensor, shard: Shard) -> Scores:
        if self._check is not None:
            self._check(out, trains=False)
        scores: Scores = {}
        for split, (picked, target) in self._rows(out, shard).items():
            key = Key(f"eval/{split}", shard.eval_clock.step)
            scores[split] = scored_by(self.metric, picked, target, shard.full.owners, key)
        return scores

    def evaluation(self, out: Tensor, shard: Shard) -> Evaluation | None:
        if not self.kind:
            return None
        return evaluation_of(self.kind, self._rows(out, shard), self.metric, shard.full.owners, shard.eval_clock.step)

    def _rows(self, out: Tensor, shard: Shard) -> dict[str, tuple[Tensor, Tensor]]:
        """The output and the target of this rank's rows of each split."""
        found = {split: (full(out[rows]), shard.full.y[rows]) for split, rows in shard.full.splits.items()}
        return {split: (found[split][0], self._target(*found[split])) for split in SPLITS}

    def tables(self, out: Tensor, shard: Shard) -> dict[str, Table]:
        return {name: table_of(rows, shard) for name, rows in self._predicted(full(out)).items()}


def _as_they_are(out: Tensor, y: Tensor) -> Tensor:
    return y


def _columns(out: Tensor, y: Tensor) -> Tensor:
    """Reshape targets like the model's output, so that neither is broadcast over the other."""
    return y.to(out.dtype).view(len(y), -1) if len(y) else y.new_zeros(out.shape, dtype=out.dtype)


def _values(out: Tensor) -> dict[str, Tensor]:
    return {"values": out.float()}


def _classes(logits: Tensor) -> dict[str, Tensor]:
    probabilities = logits.softmax(1).float()
    return {"probabilities": probabilities, "classes": probabilities.argmax(1)}


def _sets(logits: Tensor) -> dict[str, Tensor]:
    probabilities = logits.sigmoid().float()
    return {"probabilities": probabilities, "classes": (probabilities > 0.5).to(torch.uint8)}
