"""Typed node-property graphs of the Open Graph Benchmark from raw files: ogbn-mag (arXiv:2005.00687); no download."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.files import foreign, need_file
from fullgraph.data.ogb import AGAIN, class_numbers, read_csv, read_masks
from fullgraph.data.typed.graph import TypedGraph
from fullgraph.errors import InputError

SPLIT = "time"


def load_typed_ogb(name: str, folder: Path) -> TypedGraph:
    """Load raw/ and split/time/ as OGB's archive unpacks, with the same directed edges as OGB's loader.

    Types without node-feat have no features; TypedGraph.with_reverses adds the reversed relations.
    """
    raw = folder / "raw"
    kinds, counts = _rows(raw / "num-node-dict.csv.gz", 2)
    nodes: dict[str, dict[str, Any]] = {}
    for kind, count in zip(kinds, counts, strict=True):
        features = raw / "node-feat" / kind / "node-feat.csv.gz"
        nodes[kind] = {"num_nodes": np.int64(count)}
        if features.is_file():
            nodes[kind]["x"] = read_csv(features, np.float32)
        labels = raw / "node-label" / kind / "node-label.csv.gz"
        if labels.is_file():
            nodes[kind]["y"] = class_numbers(read_csv(labels, np.float64))
            masks = read_masks(folder / "split" / SPLIT / kind, int(count))
            nodes[kind] |= {f"{split}_mask": mask for split, mask in masks.items()}
    edges = {}
    for triplet in _rows(raw / "triplet-type-list.csv.gz"):
        path = raw / "relations" / "___".join(triplet) / "edge.csv.gz"
        edges[tuple(triplet)] = np.ascontiguousarray(read_csv(path, np.int64).T)
    try:
        return TypedGraph(nodes, edges, name=name)
    except InputError as bad:
        raise InputError(f"{raw}: {bad}; {AGAIN}") from None


def _rows(path: Path, count: int | None = None) -> list[list[str]]:
    """Return the rows of texts of a small table."""
    need_file(path, AGAIN)
    with foreign(path, AGAIN), gzip.open(path, "rt", newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
        if count is not None and (len(rows) != count or not all(cell.isdigit() for cell in rows[1])):
            raise InputError(f"{path} is not a line of node types and a line of their sizes: {AGAIN}")
    return rows
