"""Tasks: what a model learns: node classes, real numbers, or which pairs of nodes are edges."""

from typing import Any

from fullgraph.axes import LOSSES, METRICS, TASKS
from fullgraph.data import Graph
from fullgraph.data.labels import whole_numbers
from fullgraph.data.splits import is_drawn
from fullgraph.errors import InputError
from fullgraph.partition import GraphFacts, facts_of
from fullgraph.tasks.base import (
    BESIDE,
    EMBEDDINGS,
    Predicted,
    Scores,
    Table,
    Task,
    TaskSpec,
    check_task,
    main_table,
    predicted_by,
    table_of,
)
from fullgraph.tasks.link import Link
from fullgraph.tasks.losses import MeanLoss
from fullgraph.tasks.nodes import Classification, NodeTask, OfNodes, Regression, node_task


def task_for(chosen: TaskSpec | str, facts: GraphFacts, *, cut: bool) -> TaskSpec:
    """Return the chosen task. "auto" chooses by the labels; a graph with pairs and without labels gets link prediction.

    cut: the graph is already partitioned; such a graph has pairs only for link prediction.
    """
    if not isinstance(chosen, str):
        return chosen
    if chosen != "auto":
        return TASKS.make(chosen)  # type: ignore[no-any-return]
    return Link() if facts.pairs and (cut or not facts.labelled) else Regression() if facts.real else Classification()


def fitted(chosen: TaskSpec | str, graph: Graph, seed: int, split: int | str = 0) -> tuple[TaskSpec, Graph]:
    """Return the task for a graph, and the graph prepared for that task; a split of nodes may have to be drawn."""
    if is_drawn(split):
        if isinstance(chosen, Link) or chosen == "link":
            raise InputError(f"--split {split} draws nodes; for links, set the shares with -t val=0.05 -t test=0.1")
        graph = graph.with_split(str(split), seed)
    facts = facts_of(graph)
    task = task_for(chosen, facts, cut=False)
    task.check(facts, cut=False)
    return task, task.prepared(graph, seed).noted(*(_guessed(task, graph) if chosen == "auto" else ()))


def _guessed(task: TaskSpec, graph: Graph) -> list[str]:
    """Explain the choice of `auto` if the graph also fits another task; else return an empty text."""
    found = []
    if isinstance(task, Regression) and whole_numbers(graph.y):
        found.append("y has floats that are all whole numbers, and is learned as real numbers (regression); "
                     "--task classification reads it as classes")  # fmt: skip
    if graph.pairs is not None and not isinstance(task, Link):
        found.append("the graph's pairs are not used: its nodes have labels and masks; --task link learns from pairs")
    return found


def metric_name(task: Task) -> str:
    return METRICS.label(task.metric)


def smaller_is_better(metric: Any) -> bool:
    return bool(getattr(metric, "smaller_is_better", False))


__all__ = [
    "BESIDE",
    "EMBEDDINGS",
    "LOSSES",
    "METRICS",
    "TASKS",
    "Classification",
    "Link",
    "MeanLoss",
    "NodeTask",
    "OfNodes",
    "Predicted",
    "Regression",
    "Scores",
    "Table",
    "Task",
    "TaskSpec",
    "check_task",
    "fitted",
    "main_table",
    "metric_name",
    "node_task",
    "predicted_by",
    "smaller_is_better",
    "table_of",
    "task_for",
]
