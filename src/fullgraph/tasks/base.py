"""The two interfaces of a task: `TaskSpec`, a value of a run, and `Task`, the object that a rank builds from it."""

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fullgraph.axes import LOSSES, METRICS
from fullgraph.data import Graph
from fullgraph.data.splits import SPLITS as SPLITS
from fullgraph.errors import InputError
from fullgraph.own_code import is_ours, own_code, told, unfit
from fullgraph.partition import GraphFacts, Part
from fullgraph.placement import Loss, Placement, Shard
from fullgraph.tasks.losses import RowLoss
from fullgraph.tasks.metrics import Metric
from fullgraph.transport import Key, Transport

Scores = dict[str, float | None]  # None: undefined, such as the ROC-AUC of a split with one kind of label
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """One rank's rows of a table that all ranks write together."""

    rows: Array
    index: Array  # row numbers in the whole table
    count: int  # rows of the whole table


def table_of(rows_n: Tensor, shard: Shard) -> Table:
    """A table of this rank's rows: one for each node, or, of a typed graph, for each node of the target type."""
    ids_n, span = shard.full.ids, shard.facts.types.target_ids
    first, last = span.start, shard.full.num_nodes if span.stop is None else span.stop
    if shard.facts.types:
        picked = (ids_n >= first) & (ids_n < last)
        rows_n, ids_n = rows_n[picked], ids_n[picked]
    return Table(rows_n.cpu().numpy(), (ids_n - first).cpu().numpy(), last - first)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A table that a task predicts: the array `NAME.npy`, and columns of a CSV or Parquet file.

    prefix: begins the columns' names; an array with one column drops a final `_`. file: the name of the CSV and Parquet
    files; arrays with equal rows may share it. of: what a row stands for. classes: its values are class numbers, or its
    columns are classes; names of classes are written if there are any. main: `run.predictions` reads this table; else
    the first.
    """

    name: str
    prefix: str
    file: str = "predictions"
    of: Literal["nodes", "pairs"] = "nodes"
    classes: Literal["", "values", "columns"] = ""
    main: bool = False


# the rows of one layer, which a user may request for any task
EMBEDDINGS = Predicted(name="embeddings", prefix="x_", file="embeddings")
BESIDE = ("ids", "labels")  # arrays that name rows and columns


class Task(Protocol):
    """A task on one rank: loss, scores and predictions."""

    @property
    def metric(self) -> Metric: ...
    @property
    def loss(self) -> Loss:
        """This rank's summand of the mean loss over all ranks."""
        ...

    def placed(self, shard: Shard) -> Shard:
        """Return the shard as this task trains on it."""
        ...

    def scores(self, out: Tensor, shard: Shard) -> Scores:
        """The metric for each split, equal on every rank; `out` is the model's output for all rows of this rank."""
        ...

    def tables(self, out: Tensor, shard: Shard) -> dict[str, Table]:
        """The predictions, by the table names that the task declares."""
        ...


class TaskSpec(Protocol):
    """A task as a value of a run."""

    usual: ClassVar[tuple[str, dict[str, Any]]]  # the default model and its options
    predicts: ClassVar[tuple[Predicted, ...]]  # tables written at the end of a run and by `predict`

    def check(self, facts: GraphFacts, *, cut: bool) -> None:
        """Refuse a graph that this task cannot learn from. cut: the graph is already partitioned."""
        ...

    def check_placement(self, placement: Placement, *, inductive: bool) -> None:
        """Refuse a placement that cannot train this task."""
        ...

    def prepared(self, graph: Graph, seed: int) -> Graph:
        """Return the graph to partition and to train on."""
        ...

    def out_width(self, facts: GraphFacts) -> int:
        """Columns of the model's output."""
        ...

    def equip(self, model: nn.Module, *, seed: int, dtype: torch.dtype) -> None:
        """Add modules to the model that the task trains with it."""
        ...

    def build(
        self, facts: GraphFacts, *, metric: Metric | str, loss: RowLoss | str, seed: int,
        part: Part, shard: Shard, model: nn.Module,
    ) -> Task: ...  # fmt: skip


def predicted_by(task: Any) -> tuple[Predicted, ...]:
    """All tables that may be written for a task."""
    return *task.predicts, *(() if EMBEDDINGS in task.predicts else (EMBEDDINGS,))


def main_table(task: Any) -> str:
    """The name of the table that `run.predictions` reads."""
    return str(next((table for table in task.predicts if table.main), task.predicts[0]).name)


def check_task(task: Any) -> None:
    """Refuse a user's task if its tables cannot be written."""
    if is_ours(task):
        return
    tables = task.predicts
    if not isinstance(tables, tuple) or not tables or not all(isinstance(table, Predicted) for table in tables):
        raise unfit(
            task, "has `predicts` without tables: give a tuple of fullgraph.tasks.Predicted(name=..., prefix=...)"
        )
    names = [table.name for table in tables]
    for table in tables:
        if not re.fullmatch("[a-z][a-z0-9_]*", f"{table.name}") or not re.fullmatch("[a-z][a-z0-9_]*", f"{table.file}"):
            raise unfit(
                task, f"predicts {table.name!r} in {table.file!r}: name the file with lower-case letters, digits and _"
            )
        if (
            names.count(table.name) > 1
            or table.name in BESIDE
            or (table.name == EMBEDDINGS.name and table != EMBEDDINGS)
        ):
            raise unfit(task, f"predicts two tables named `{table.name}`: give one another name")


def scored_by(metric: Metric, logits: Tensor, target: Tensor, transport: Transport, key: Key) -> float | None:
    """The metric's score of the rows of all ranks; None if the metric returns None."""
    with own_code(metric, fix="a metric is called with (logits, target, transport, key)"):
        found: Any = metric(logits, target, transport, key)
        one = found.item() if isinstance(found, Tensor | np.generic) and found.shape == () else found
    if not isinstance(one, int | float):
        raise unfit(metric, f"returned {told(found)}: return one number, the same on every rank")
    return None if math.isnan(one) else float(one)


def check_logits(model: nn.Module, out: Tensor, *, columns: int, what: str, trains: bool) -> None:
    """Refuse a model's output that no loss could read, or that a loss would misread."""
    if not out.is_floating_point() or out.dim() != 2 or out.shape[1] != columns:
        problem = f"returned {told(out)} for {what}: return a row of {columns} numbers for each node"
        raise unfit(model.forward, problem, "the model")
    if trains and len(out) and not out.requires_grad:
        raise unfit(model.forward, "returned rows without a gradient: leave out detach() and no_grad()", "the model")


def chosen_metric(metric: Metric | str, fitting: list[str], what: str) -> Metric:
    """Return the requested metric if it fits the task, or the first that fits by default; a user's own metric always
    fits.
    """
    return _chosen(METRICS, metric, fitting, what)  # type: ignore[no-any-return]


def chosen_loss(loss: RowLoss | str, fitting: list[str], what: str) -> RowLoss:
    return _chosen(LOSSES, loss, fitting, what)  # type: ignore[no-any-return]


def _chosen(axis: Any, given: Any, fitting: list[str], what: str) -> Any:
    chosen = axis[fitting[0] if given == "auto" else given] if isinstance(given, str) else given
    name = axis.name_of(chosen)
    if name in axis and name not in fitting:
        raise InputError(f"{axis.what} {name!r} does not fit {what}; use one of: {', '.join(fitting)}")
    return chosen
