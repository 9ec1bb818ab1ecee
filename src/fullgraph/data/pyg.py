"""Graphs of PyTorch Geometric: a `Data` object, or one of its data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.arrays import as_numpy
from fullgraph.data.files import data_root
from fullgraph.data.graph import Graph
from fullgraph.data.pairs import KEYS as PAIRS
from fullgraph.data.splits import random_masks
from fullgraph.errors import InputError, one_line

_MASKS = ("train_mask", "val_mask", "test_mask")


def graph_from_pyg(data: Any, name: str = "graph") -> Graph:
    """The same arcs, features, labels and masks as a `Graph`; y [N, 1] is read as class numbers [N].

    Without labels or masks it is a graph to predict on; RandomNodeSplit of PyG's adds masks.
    """
    missing = [key for key in ("edge_index", "x") if getattr(data, key, None) is None]
    if missing:
        raise InputError(f"the PyG data lacks {', '.join(missing)}: give a homogeneous Data object that has them")
    masks = {key.removesuffix("_mask"): getattr(data, key, None) for key in _MASKS}
    y = getattr(data, "y", None)
    labels = None if y is None else _labels(y)
    weight = getattr(data, "edge_weight", None)
    attr = getattr(data, "edge_attr", None)
    pairs = {key: value for key in PAIRS if (value := getattr(data, key, None)) is not None} or None
    return Graph(data.edge_index, data.x, labels, masks, edge_weight=weight, edge_attr=attr, pairs=pairs, name=name)


def graph_to_pyg(graph: Graph, split: int = 0) -> Any:
    """A torch_geometric `Data` with copies of the graph's arrays."""
    import torch

    try:
        from torch_geometric.data import Data
    except ImportError:
        raise InputError("to_pyg needs torch_geometric: pip install torch_geometric") from None
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    masks = {key: torch.tensor(getattr(graph, key)[:, split]) for key in _MASKS}
    arcs = {
        key: torch.tensor(value) for key in ("edge_weight", "edge_attr") if (value := getattr(graph, key)) is not None
    }
    edge_index = torch.from_numpy(graph.edge_index.astype(np.int64))
    return Data(x=torch.tensor(x).float(), y=torch.tensor(graph.y), edge_index=edge_index, **masks, **arcs)


def _labels(y: Any) -> Any:
    labels = as_numpy(y)
    class_numbers = labels.dtype.kind in "iu" and labels.ndim == 2 and labels.shape[1] == 1
    return labels[:, 0] if class_numbers else labels


def load_pyg(spec: str) -> Graph:
    """torch_geometric.datasets.CLASS(root, name=NAME)[0] for the spec CLASS/NAME (or CLASS where it takes no name).

    Files live under $FULLGRAPH_DATA/pyg/CLASS; PyG downloads them there and reads them in its own formats.
    A data set without masks gets a 60/20/20 split of its labelled nodes (numpy seed 0).
    """
    class_name, _, dataset_name = spec.partition("/")
    try:
        from torch_geometric import datasets
    except ImportError:
        raise InputError(f"pyg:{spec} needs torch_geometric: pip install torch_geometric") from None
    dataset_class = getattr(datasets, class_name, None) if class_name.isidentifier() else None
    if not callable(dataset_class):
        raise InputError(
            f"torch_geometric.datasets has no '{class_name}': write pyg:CLASS/NAME, as in pyg:Planetoid/Cora"
        )
    if Path(dataset_name).name != dataset_name:  # PyG makes a folder of that name
        raise InputError(f"pyg:{spec}: a data set's name has no slashes: write pyg:CLASS/NAME")
    root = data_root() / "pyg" / class_name
    options = {"name": dataset_name} if dataset_name else {}
    try:
        dataset = dataset_class(str(root), **options)
        count, data = len(dataset), dataset[0]
    except Exception as bad:  # PyG passes on whatever its downloader, unpacker or parser raised
        raise InputError(
            f"PyG could not load {spec} ({type(bad).__name__}: {one_line(bad)}): "
            f"check the name and the network, or put its raw files under {root}"
        ) from None
    if count != 1:
        raise InputError(f"pyg:{spec} holds {count} graphs: name a data set with one graph")
    return graph_from_pyg(_with_masks(data), name=(dataset_name or class_name).lower())


def _with_masks(data: Any) -> Any:
    y = getattr(data, "y", None)
    if y is None or any(getattr(data, key, None) is not None for key in _MASKS):
        return data
    labels = _labels(y)
    real = labels.dtype.kind == "f"
    rows = np.isfinite(labels.reshape(len(labels), -1)).all(1) if real else labels >= 0
    known = np.flatnonzero(rows) if rows.ndim == 1 else np.arange(labels.shape[0])
    for name, mask in random_masks(np.random.default_rng(0), known.size, 0.6, 0.2).items():
        full = np.zeros(labels.shape[0], dtype=bool)
        full[known[mask]] = True
        setattr(data, f"{name}_mask", full)
    return data
