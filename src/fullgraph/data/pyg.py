"""Graphs of PyTorch Geometric: a `Data` object, the three of RandomLinkSplit, or one of PyG's data sets by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fullgraph.data.arrays import Array, as_csr_array, as_numpy
from fullgraph.data.csr import targets
from fullgraph.data.fields import belongs
from fullgraph.data.files import data_root
from fullgraph.data.graph import Graph
from fullgraph.data.pairs import KEYS as PAIRS
from fullgraph.data.pairs import MASKS as PAIR_MASKS
from fullgraph.data.splits import MASK_KEYS, MASKS, masks_of
from fullgraph.errors import InputError, one_line

if TYPE_CHECKING:
    from fullgraph.data.typed import TypedGraph

LABELS = tuple(f"{sign}edge_label{what}" for sign in ("", "pos_", "neg_") for what in ("", "_index"))
FIX = "give what RandomLinkSplit returns, (train, val, test)"


def link_pairs(splits: Sequence[Any]) -> tuple[dict[str, Array], list[str]]:
    """Return the pairs of all three data, named as in the `.npz` format, and notes about unused edges."""
    if len(splits) != len(PAIR_MASKS):
        raise InputError(f"{len(splits)} PyG data are not a graph: {FIX}, or one Data")
    parts = [_of_split(data, mask) for data, mask in zip(splits, PAIR_MASKS, strict=True)]
    counts = {len(data.x) for data in splits if getattr(data, "x", None) is not None}
    if len(counts) > 1:
        raise InputError(f"the three PyG data have {', '.join(map(str, sorted(counts)))} nodes: {FIX} of one graph")
    ends, y = (np.concatenate(both, axis=-1) for both in zip(*parts, strict=True))
    split = np.repeat(np.arange(len(PAIR_MASKS)), [len(labels) for _, labels in parts])
    pairs = {"pairs": ends.T, "pair_y": y, **{mask: split == number for number, mask in enumerate(PAIR_MASKS)}}
    more = [_num_arcs(data) - _num_arcs(splits[0]) for data in splits[1:]]
    if not any(more):
        return pairs, []
    extra = ", ".join(f"{count:+,} for {what}" for count, what in zip(more, ("val", "test"), strict=True) if count)
    return pairs, [
        f"rows of all pairs are computed from the training edges; the other two PyG data have different edges ({extra})"
    ]


def _of_split(data: Any, mask: str) -> tuple[Array, Array]:
    """Return edge_label_index [2, P] and edge_label; with split_labels=True PyG stores them in two lists."""
    ends = getattr(data, "edge_label_index", None)
    if ends is not None:
        labels = getattr(data, "edge_label", None)
        ends = as_numpy(ends)
        y = np.ones(ends.shape[-1], np.int64) if labels is None else as_numpy(labels)
    else:
        both = [getattr(data, f"{sign}_edge_label_index", None) for sign in ("pos", "neg")]
        if both[0] is None:
            raise InputError(f"the PyG data for {mask} lacks edge_label_index: {FIX}")
        lists = [np.empty((2, 0), np.int64) if each is None else as_numpy(each) for each in both]
        ends, y = np.concatenate(lists, axis=1), np.repeat([1, 0], [each.shape[1] for each in lists])
    if ends.ndim != 2 or ends.shape[0] != 2 or y.shape != ends.shape[1:]:
        raise InputError(f"edge_label_index is {ends.shape} for edge_label {y.shape}: {FIX}")
    if not ((y == 0) | (y == 1)).all():
        raise InputError("edge_label has more than 0 and 1: link prediction learns whether a pair is an edge")
    return ends, y


def keys_of(data: Any) -> Sequence[str]:
    """Return the names of the arrays in a `Data`."""
    keys = getattr(data, "keys", None)
    return list(keys() if callable(keys) else keys or vars(data))  # `keys` is a property in old versions of PyG


def _num_arcs(data: Any) -> int:
    edge_index = getattr(data, "edge_index", None)
    return 0 if edge_index is None else int(edge_index.shape[1])


_USED = {"edge_index", "edge_weight", "edge_attr", "x", "y", "num_nodes", "class_names", *MASK_KEYS, *PAIRS}
SPLIT = "random:60/20/20"  # for a data set without masks


def graph_from_pyg(data: Any, name: str = "graph", masks: Any = None) -> Graph:
    """Return a `Graph` with the same edges, features, labels and masks; y [N, 1] is read as class numbers [N].

    A graph without labels or masks can only be predicted on; PyG's RandomNodeSplit adds masks. From the three `Data` of
    RandomLinkSplit come the edges of the first one and the pairs of all; nodes have no split.
    """
    splits = tuple(data) if isinstance(data, list | tuple) else (data,)
    pairs, notes = (None, []) if len(splits) == 1 else link_pairs(splits)
    data = splits[0]
    edge_index, weight, attr = arcs_of(data)
    given = {key: value for key in PAIRS if (value := getattr(data, key, None)) is not None}
    if pairs is None and masks is None:
        masks = masks_of(lambda key: getattr(data, key, None))
    y, x = getattr(data, "y", None), getattr(data, "x", None)
    known = keys_of(data)
    nodes = getattr(data, "num_nodes", None) if x is None else len(x) if not hasattr(x, "shape") else x.shape[0]
    edges = as_numpy(edge_index)
    count = edges.shape[1] if edges.ndim == 2 else -1
    fields, left = _fields(data, set(LABELS) if pairs else set(), nodes, count)
    return Graph(
        edge_index,
        x,
        None if y is None else as_labels(y),
        masks,
        edge_weight=weight,
        edge_attr=attr,
        pairs=pairs or given or None,
        name=name,
        num_nodes=getattr(data, "num_nodes", None) if "num_nodes" in known else None,
        class_names=getattr(data, "class_names", None),
        fields=fields,
        notes=[*notes, *_unused(data, left)],
    )


def arcs_of(data: Any) -> tuple[Any, Any, Any]:
    """Return edge_index, edge weights and edge features: as given, or from `adj_t`, whose rows are the targets."""
    edge_index, adj_t = (getattr(data, key, None) for key in ("edge_index", "adj_t"))
    weight, attr = (getattr(data, key, None) for key in ("edge_weight", "edge_attr"))
    if edge_index is not None:
        return edge_index, weight, attr
    if adj_t is None:
        raise InputError("the PyG data lacks edge_index: give a homogeneous Data object that has it (or adj_t)")
    if callable(getattr(adj_t, "coo", None)):  # a matrix of torch_sparse
        target, source, value = adj_t.coo()
        values = None if value is None else as_numpy(value)
    elif str(getattr(adj_t, "layout", "")) == "torch.sparse_csr":
        target = targets(as_numpy(adj_t.crow_indices()))
        source, values = adj_t.col_indices(), as_numpy(adj_t.values())
    else:
        matrix = as_csr_array(adj_t)
        if matrix is None:
            raise InputError(f"adj_t is a {type(adj_t).__name__}: give a sparse matrix, as ToSparseTensor makes it")
        coo = matrix.tocoo()
        (target, source), values = coo.coords, coo.data
    if values is not None and values.ndim == 1 and (values == 1).all():
        values = None  # all ones: a torch matrix must have numbers, so this means no weights
    arcs = np.stack([as_numpy(source), as_numpy(target)])
    if values is not None and values.ndim == 2:
        return arcs, weight, values
    return arcs, values if weight is None else weight, attr


def _fields(data: Any, used: set[str], nodes: int | None, edges: int) -> tuple[dict[str, Any], list[str]]:
    """Return the arrays of a `Data` that have a row per node or per edge, and the names of those that do not."""
    fields, left = dict[str, Any](), list[str]()
    for key in sorted(keys_of(data)):
        value = getattr(data, key, None)
        if key in _USED | used or not hasattr(value, "shape") or (key == "adj_t" and "edge_index" not in keys_of(data)):
            continue
        dense = value if hasattr(value, "dtype") and "sparse" not in str(getattr(value, "layout", "")) else None
        array = None if dense is None or nodes is None else as_numpy(dense)
        if array is not None and belongs(key, array.shape, array.dtype.kind, nodes or 0, edges):
            fields[key] = array
        else:
            left.append(key)
    return fields, left


def _unused(data: Any, left: list[str]) -> list[str]:
    """Return a note about the arrays of a `Data` that a graph does not use."""
    if not left:
        return []
    names = ", ".join(one_line(key, 40) for key in left)
    note = f"of the PyG data, {names} {'is' if len(left) == 1 else 'are'} not used"
    if "edge_label_index" in left:
        return [f"{note}; for the pairs of RandomLinkSplit give all three data: Graph.from_pyg((train, val, test))"]
    return [f"{note}; a model can take arrays of numbers with a row for each node or each edge"]


def graph_to_pyg(graph: Graph, split: int = 0) -> Any:
    """Return a torch_geometric `Data` with copies of the graph's arrays."""
    import torch

    try:
        from torch_geometric.data import Data
    except ImportError:
        raise InputError("to_pyg needs torch_geometric: pip install torch_geometric") from None
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    masks = {key: torch.tensor(getattr(graph, key)[:, split]) for key in MASKS}
    named = {"class_names": list(graph.class_names)} if graph.class_names else {}
    arcs = {
        key: torch.tensor(value) for key in ("edge_weight", "edge_attr") if (value := getattr(graph, key)) is not None
    }
    fields = {key: torch.tensor(value) for key, value in {**graph.fields.nodes, **graph.fields.edges}.items()}
    edge_index = torch.from_numpy(graph.edge_index.astype(np.int64))
    return Data(
        x=torch.tensor(x).float(), y=torch.tensor(graph.y), edge_index=edge_index, **masks, **arcs, **named, **fields
    )


def as_labels(y: Any) -> Any:
    labels = as_numpy(y)
    class_numbers = labels.dtype.kind in "iu" and labels.ndim == 2 and labels.shape[1] == 1
    return labels[:, 0] if class_numbers else labels


def load_pyg(spec: str) -> Graph | TypedGraph:
    """Load torch_geometric.datasets.CLASS(root, name=NAME)[0] for the spec CLASS/NAME (or CLASS without a name).

    Files are in $FULLGRAPH_DATA/pyg/CLASS; PyG downloads them there and reads them in its own formats.
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
    if Path(dataset_name).name != dataset_name:  # PyG would create a folder of that name
        raise InputError(f"pyg:{spec}: a data set's name has no slashes: write pyg:CLASS/NAME")
    root = data_root() / "pyg" / class_name
    options = {"name": dataset_name} if dataset_name else {}
    try:
        dataset = dataset_class(str(root), **options)
        count, data = len(dataset), dataset[0]
    except Exception as bad:  # an error of PyG's downloader, unpacker or parser
        raise InputError(
            f"PyG could not load {spec} ({type(bad).__name__}: {one_line(bad)}): "
            f"check the name and the network, or put its raw files under {root}"
        ) from None
    if count != 1:
        raise InputError(f"pyg:{spec} holds {count} graphs: name a data set with one graph")
    if hasattr(data, "node_types"):
        from fullgraph.data.typed import TypedGraph

        return TypedGraph.from_pyg(data, (dataset_name or class_name).lower())
    graph = graph_from_pyg(data, name=(dataset_name or class_name).lower())
    if any(mask is not None for mask in masks_of(lambda key: getattr(data, key, None)).values()) or "y" in graph.lacks:
        return graph
    return graph.with_split(SPLIT, seed=0).noted(f"{graph.name} comes without masks: {SPLIT} was drawn, with seed 0")
