"""What a task is: a value of a run, and the object that a rank makes of it."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fullgraph.axes import LOSSES, METRICS
from fullgraph.data import Graph
from fullgraph.data.splits import SPLITS as SPLITS
from fullgraph.errors import InputError
from fullgraph.own_code import own_code, told, unfit
from fullgraph.partition import GraphFacts, Part
from fullgraph.placement import Loss, Placement, Shard
from fullgraph.tasks.losses import RowLoss
from fullgraph.tasks.metrics import Metric
from fullgraph.transport import Key, Transport

Scores = dict[str, float | None]  # a split without both kinds of label has no ROC-AUC
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """A rank's rows of a table that all ranks write together."""

    rows: Array
    index: Array  # where these rows belong
    count: int  # rows of all ranks


class Task(Protocol):
    """What is learned, on one rank."""

    @property
    def metric(self) -> Metric: ...
    @property
    def loss(self) -> Loss:
        """A rank's part of the mean loss."""
        ...

    def placed(self, shard: Shard) -> Shard:
        """The shard as this task trains on it."""
        ...

    def scores(self, out: Tensor, shard: Shard) -> Scores:
        """The metric on each split, the same on every rank; `out` is the model's output for all rows of this one."""
        ...

    def tables(self, out: Tensor, shard: Shard) -> dict[str, Table]:
        """What is predicted, by file name."""
        ...


class TaskSpec(Protocol):
    """A task as a value of a run."""

    usual: ClassVar[tuple[str, dict[str, Any]]]  # the model of a run that names none, and its options

    def check(self, facts: GraphFacts, *, cut: bool) -> None:
        """Refuse a graph, or one that was cut before, that this task cannot learn from."""
        ...

    def check_placement(self, placement: Placement, *, inductive: bool) -> None:
        """Refuse a placement that cannot train it."""
        ...

    def prepared(self, graph: Graph, seed: int) -> Graph:
        """The graph that is cut and trained on."""
        ...

    def out_width(self, facts: GraphFacts) -> int:
        """Columns of the model's output."""
        ...

    def equip(self, model: nn.Module, *, seed: int, dtype: torch.dtype) -> None:
        """Give the model what the task trains beside it."""
        ...

    def build(
        self, facts: GraphFacts, *, metric: Metric | str, loss: RowLoss | str, seed: int,
        part: Part, shard: Shard, model: nn.Module,
    ) -> Task: ...  # fmt: skip


def scored_by(metric: Metric, logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float | None:
    """The metric's score of the rows of all ranks; None where there is none."""
    with own_code(metric, fix="a metric is called with (logits, target, transport, key)"):
        found: Any = metric(logits, target, transport, key)
        one = found.item() if isinstance(found, Tensor | np.generic) and found.shape == () else found
    if not isinstance(one, int | float):
        raise unfit(metric, f"returned {told(found)}: return one number, the same on every rank")
    return None if math.isnan(one) else float(one)


def check_logits(model: nn.Module, out: Tensor, *, columns: int, what: str, trains: bool) -> None:
    """Refuse a model's output that no loss could read, or that would be read as something else."""
    if not out.is_floating_point() or out.dim() != 2 or out.shape[1] != columns:
        problem = f"returned {told(out)} for {what}: return a row of {columns} numbers for each node"
        raise unfit(model.forward, problem, "the model")
    if trains and len(out) and not out.requires_grad:
        raise unfit(model.forward, "returned rows without a gradient: leave out detach() and no_grad()", "the model")


def chosen_metric(metric: Metric | str, fitting: list[str], what: str) -> Metric:
    """The metric asked for where it fits, the first that does by default; a user's own always does."""
    return _chosen(METRICS, metric, fitting, what)  # type: ignore[no-any-return]


def chosen_loss(loss: RowLoss | str, fitting: list[str], what: str) -> RowLoss:
    return _chosen(LOSSES, loss, fitting, what)  # type: ignore[no-any-return]


def _chosen(axis: Any, given: Any, fitting: list[str], what: str) -> Any:
    chosen = axis[fitting[0] if given == "auto" else given] if isinstance(given, str) else given
    name = axis.name_of(chosen)
    if name in axis and name not in fitting:
        raise InputError(f"{axis.what} {name!r} does not fit {what}; use one of: {', '.join(fitting)}")
    return chosen
