"""Node-property graphs of the Open Graph Benchmark from raw files (Hu et al., arXiv:2005.00687); no download.

ogbn-mag is a typed graph.
"""

from __future__ import annotations

import csv
import gzip
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.files import data_root, foreign, need_file, read_npz
from fullgraph.data.graph import Graph
from fullgraph.data.splits import mask_of
from fullgraph.data.typed.graph import TypedGraph
from fullgraph.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    split: str
    add_inverse: bool  # True if the raw files hold each undirected edge once
    binary: bool = False


_KNOWN = {
    "ogbn-arxiv": _Layout(split="time", add_inverse=False),
    "ogbn-products": _Layout(split="sales_ranking", add_inverse=True),
    "ogbn-papers100M": _Layout(split="time", add_inverse=False, binary=True),
}


_TYPED = ("ogbn-mag",)
AGAIN = "unpack OGB's archive again, its raw and split folders side by side"


def load_ogb(name: str) -> Graph | TypedGraph:
    """Load the graph `name` from $FULLGRAPH_DATA/ogbn_NAME/raw and ../split, as OGB's archives unpack.

    Edges are the same as from OGB's loader: arxiv and papers100M stay directed (citing -> cited); products gets the
    reverse of every edge, since its files store one direction. Missing labels (papers100M) become -1.
    """
    if name not in (*_KNOWN, *_TYPED):
        names = ", ".join((*_KNOWN, *_TYPED))
        raise InputError(f"ogb:{name} is not supported (not a graph with one class per node): choose {names}")
    folder = data_root() / name.replace("-", "_")
    if not folder.is_dir():
        raise InputError(
            f"ogb:{name} looks for {folder / 'raw'}, which does not exist: unpack OGB's archive there, "
            "or set FULLGRAPH_DATA to the folder that holds it"
        )
    if name in _TYPED:
        return load_typed_ogb(name, folder)
    layout = _KNOWN[name]
    edges, x, y = _binary(folder) if layout.binary else _text(folder)
    if layout.add_inverse:
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    masks = read_masks(folder / "split" / layout.split, x.shape[0])
    return Graph(edges, x, y, masks, name=name)


def _text(folder: Path) -> tuple[Array, Array, Array]:
    raw = folder / "raw"
    num_nodes = int(read_csv(raw / "num-node-list.csv.gz", np.int64)[0, 0])
    edges = np.ascontiguousarray(read_csv(raw / "edge.csv.gz", np.int64).T)
    x = read_csv(raw / "node-feat.csv.gz", np.float32)
    if x.shape[0] != num_nodes:
        raise InputError(
            f"{raw / 'node-feat.csv.gz'} has {x.shape[0]} rows for {num_nodes} nodes: unpack the archive again"
        )
    return edges, x, class_numbers(read_csv(raw / "node-label.csv.gz", np.float64))


def _binary(folder: Path) -> tuple[Array, Array, Array]:
    raw = folder / "raw"
    need_file(raw / "data.npz", "unpack OGB's archive again")
    need_file(raw / "node-label.npz", "unpack OGB's archive again")
    arrays = read_npz(raw / "data.npz", ("edge_index", "node_feat"))
    labels = read_npz(raw / "node-label.npz", ("node_label",))
    return arrays["edge_index"], arrays["node_feat"], class_numbers(labels["node_label"])


def class_numbers(labels: Array) -> Array:
    if labels.ndim == 2 and labels.shape[1] != 1:
        raise InputError(f"node-label has {labels.shape[1]} columns: only graphs with one class per node are supported")
    flat = labels.reshape(-1)
    if flat.dtype.kind == "f":
        flat = np.where(np.isnan(flat), -1, flat)
    return flat.astype(np.int64)


def read_masks(folder: Path, num_nodes: int) -> dict[str, Array]:
    masks = {}
    for name, stem in (("train", "train"), ("val", "valid"), ("test", "test")):
        path = folder / f"{stem}.csv.gz"
        ids = read_csv(path, np.int64)[:, 0]
        if ids.size and (ids.min() < 0 or ids.max() >= num_nodes):
            raise InputError(f"{path} names nodes outside 0 to {num_nodes - 1}: unpack the archive again")
        masks[name] = mask_of(ids, num_nodes)
    return masks


def read_csv(path: Path, dtype: type[np.generic]) -> Array:
    need_file(path, AGAIN)
    with foreign(path, "unpack the archive again"), warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of an empty file
        return np.loadtxt(path, delimiter=",", dtype=dtype, ndmin=2)


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
