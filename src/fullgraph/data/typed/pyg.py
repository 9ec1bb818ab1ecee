"""Typed graphs of PyTorch Geometric: a `HeteroData` object."""

from __future__ import annotations

from typing import Any

import numpy as np

from fullgraph.data.pairs import KEYS as PAIRS
from fullgraph.data.pyg import LABELS, arcs_of, as_labels, link_pairs
from fullgraph.data.splits import MASKS
from fullgraph.data.typed.graph import EDGE_KEYS, NODE_KEYS, TypedGraph, spelled
from fullgraph.errors import InputError, one_line


def is_hetero(data: Any) -> bool:
    """Whether a value is PyG's `HeteroData`."""
    return all(hasattr(data, name) for name in ("node_types", "edge_types", "node_stores"))


def typed_from_pyg(data: Any, name: str = "graph") -> TypedGraph:
    """Return a `TypedGraph` with the same edges, features, labels and masks; y [N, 1] is read as class numbers [N].

    data: also the three results of RandomLinkSplit: the edges of the first one, and the pairs of all.
    """
    splits = tuple(data) if isinstance(data, list | tuple) else (data,)
    data = splits[0]
    if not all(map(is_hetero, splits)):
        raise InputError(f"a {type(data).__name__} is not typed: give a PyG HeteroData, or use Graph.from_pyg")
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[tuple[str, str, str], dict[str, Any]] = {}
    unused, notes = list[str](), list[str]()
    for kind in data.node_types:
        store = data[kind]
        nodes[kind] = {key: store[key] for key in NODE_KEYS if key in store}
        if nodes[kind].get("y") is not None:
            nodes[kind]["y"] = as_labels(nodes[kind]["y"])
        unused += [f"{kind}.{key}" for key in store if key not in NODE_KEYS and hasattr(store[key], "shape")]
    for relation in data.edge_types:
        store = data[relation]
        parts = zip(EDGE_KEYS, arcs_of(store), strict=True)
        edges[relation] = {key: value for key, value in parts if value is not None}
        edges[relation] |= {key: store[key] for key in PAIRS if key in store}
        known = {*EDGE_KEYS, *PAIRS, "adj_t"}
        if len(splits) > 1 and any(key in store for key in LABELS):
            pairs, notes = link_pairs([split[relation] for split in splits])
            edges[relation] |= pairs
            known |= set(LABELS)
        unused += [f"{spelled(relation)}.{key}" for key in store if key not in known and hasattr(store[key], "shape")]
    there = f"of the PyG data, {one_line(', '.join(unused), 120)} {'is' if len(unused) == 1 else 'are'} not used"
    return TypedGraph(nodes, edges, name=name, notes=[*notes, *([there] if unused else ())])


def typed_to_pyg(graph: TypedGraph, split: int = 0) -> Any:
    """Return a `HeteroData` with copies of the graph's arrays."""
    import torch

    try:
        from torch_geometric.data import HeteroData
    except ImportError:
        raise InputError("to_pyg needs torch_geometric: pip install torch_geometric") from None
    data = HeteroData()
    for kind, nodes in graph.nodes.items():
        if nodes.x is None:
            data[kind].num_nodes = nodes.num_nodes
        else:
            data[kind].x = torch.tensor(nodes.x if isinstance(nodes.x, np.ndarray) else nodes.x.toarray()).float()
    for relation, edges in graph.edges.items():
        data[relation].edge_index = torch.from_numpy(edges.edge_index.astype(np.int64))
        for key in ("edge_weight", "edge_attr"):
            if (value := getattr(edges, key)) is not None:
                data[relation][key] = torch.tensor(value)
    labels = graph.labels
    if labels is not None:
        arrays = {} if "y" in labels.lacks else {"y": torch.tensor(labels.y)}
        arrays |= {} if labels.lacks else {key: torch.tensor(getattr(labels, key)[:, split]) for key in MASKS}
        for key, value in arrays.items():
            data[graph.target][key] = value
        if labels.class_names:
            data[graph.target].class_names = list(labels.class_names)
    return data
