"""The quality of an assignment: rows to communicate, and balance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.errors import InputError
from fullgraph.partition.base import Assignment
from fullgraph.partition.layout import Layout, lay_out
from fullgraph.values import Value


@dataclass(frozen=True)
class Quality(Value):
    """halo_rows = sum over parts p of |{ u not in p : an arc u -> v, v in p }|;  imbalance = max / mean over parts.

    edge_cut counts arcs (directed edges) whose two ends have different owners, so an undirected edge counts twice.
    """

    edge_cut: int
    halo_rows: int
    nodes: tuple[int, ...]  # owned, per part
    edges: tuple[int, ...]  # arcs into owned nodes, per part
    halo: tuple[int, ...]  # halo rows, per part
    train: tuple[int, ...]  # owned training nodes, per part
    edge_imbalance: float
    node_imbalance: float


def quality(graph: Graph, assignment: Assignment, split: int = 0, *, layout: Layout | None = None) -> Quality:
    """Return the figures of an assignment; training nodes are those of `split`."""
    if not 0 <= split < graph.num_splits:
        raise InputError(f"split {split} does not exist: choose from 0 to {graph.num_splits - 1}")
    laid = lay_out(graph, assignment) if layout is None else layout
    degree = np.diff(graph.indptr)
    nodes = [len(ids) for ids in laid.owned]
    edges = [int(degree[ids].sum()) for ids in laid.owned]
    train = np.bincount(assignment.part[graph.train_mask[:, split]], minlength=assignment.parts)
    halo = [len(ids) for ids in laid.halo]
    return Quality(
        edge_cut=int(laid.cut_arcs.sum()),
        halo_rows=sum(halo),
        nodes=tuple(nodes),
        edges=tuple(edges),
        halo=tuple(halo),
        train=tuple(int(count) for count in train),
        edge_imbalance=_imbalance(np.asarray(edges)),
        node_imbalance=_imbalance(np.asarray(nodes)),
    )


def _imbalance(share: Array) -> float:
    mean = float(share.mean())
    return float(share.max()) / mean if mean > 0 else 1.0
