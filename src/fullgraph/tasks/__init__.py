"""What is learned: node classes, real numbers, or which pairs of nodes are an edge."""

from typing import Any

from fullgraph.axes import LOSSES, METRICS, TASKS
from fullgraph.data import Graph
from fullgraph.partition import GraphFacts, facts_of
from fullgraph.tasks.base import Scores, Table, Task, TaskSpec
from fullgraph.tasks.link import Link
from fullgraph.tasks.nodes import Classification, Regression, node_task


def task_for(chosen: TaskSpec | str, facts: GraphFacts, *, cut: bool) -> TaskSpec:
    """The task asked for; with "auto", the one that the labels are for, or links where there are none but pairs.

    cut: the graph was cut into parts, which have pairs for link prediction alone.
    """
    if not isinstance(chosen, str):
        return chosen
    if chosen != "auto":
        return TASKS.make(chosen)  # type: ignore[no-any-return]
    return Link() if facts.pairs and (cut or not facts.labelled) else Regression() if facts.real else Classification()


def fitted(chosen: TaskSpec | str, graph: Graph, seed: int) -> tuple[TaskSpec, Graph]:
    """The task for a graph, and the graph as it is cut for that task."""
    facts = facts_of(graph)
    task = task_for(chosen, facts, cut=False)
    task.check(facts, cut=False)
    return task, task.prepared(graph, seed)


def metric_name(task: Task) -> str:
    return METRICS.label(task.metric)


def smaller_is_better(metric: Any) -> bool:
    return bool(getattr(metric, "smaller_is_better", False))


__all__ = [
    "LOSSES",
    "METRICS",
    "TASKS",
    "Classification",
    "Link",
    "Regression",
    "Scores",
    "Table",
    "Task",
    "TaskSpec",
    "fitted",
    "metric_name",
    "node_task",
    "smaller_is_better",
    "task_for",
]
