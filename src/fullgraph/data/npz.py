"""Read and write the project's own `.npz` graphs.

Typed graphs have names with slashes: TYPE/x, SOURCE__RELATION__TARGET/edge_index, TYPE/y, ...
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array, FeatureMatrix
from fullgraph.data.fields import belongs
from fullgraph.data.files import Members, read_npz
from fullgraph.data.graph import Graph
from fullgraph.data.pairs import KEYS as PAIRS
from fullgraph.data.pairs import arrays_of
from fullgraph.data.splits import MASK_KEYS, MASKS, masks_of
from fullgraph.data.typed.graph import EDGE_KEYS, NODE_KEYS, TypedGraph, spelled
from fullgraph.data.validate import as_real
from fullgraph.errors import InputError, explain, nearest, one_line
from fullgraph.storage import sweep, whole_file

CSR_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape")
_OTHERS = ("y", "class_names", "num_nodes", *MASK_KEYS, "edge_weight", "edge_attr", "names")
_KNOWN = ("x", *CSR_KEYS, *_OTHERS, *PAIRS)


def load_npz(path: str | Path) -> Graph:
    """Load the graph in `path`: edge_index, and, if present, x or its CSR parts (x_data, ...), y and the masks,
    edge_weight, edge_attr, pairs, names. Further arrays with a row per node or per edge become the graph's fields.

    An uncompressed x stays in the file, memory-mapped. So do edges while they are sorted. All else is read.
    """
    path = Path(path)
    arrays = read_npz(
        path,
        ("edge_index",),
        _KNOWN,
        mapped=("x", "edge_index"),
        check=lambda members: _check_lengths(path, members),
        others=_is_field,
    )
    pairs = {key: arrays[key] for key in PAIRS if key in arrays}
    with _named(path):
        return Graph(
            arrays["edge_index"],
            features_of(path, arrays),
            arrays.get("y"),
            masks_of(arrays.get),
            edge_weight=arrays.get("edge_weight"),
            edge_attr=arrays.get("edge_attr"),
            pairs=pairs or None,
            names=arrays.get("names"),
            num_nodes=arrays.get("num_nodes"),
            class_names=arrays.get("class_names"),
            fields={key: array for key, array in arrays.items() if key not in (*_KNOWN, "edge_index")},
            name=path.stem,
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let every error name the file."""
    try:
        yield
    except InputError as bad:
        text = str(bad)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def _is_field(key: str, members: Members) -> bool:
    """Whether an array that the form of the file does not name has a row per node or per edge."""
    rows = [members[name].shape[0] for name in ("x", "y", "names", "train_mask") if name in members]
    rows += [members["x_indptr"].shape[0] - 1] if "x_indptr" in members else []
    edges = members["edge_index"].shape
    if key not in members or not rows or len(edges) != 2:
        return False
    return bool(belongs(key, members[key].shape, members[key].dtype.kind, rows[0], edges[1]))


def _check_lengths(path: Path, members: Members) -> None:
    """Refuse arrays that cannot belong to the same graph, before any of them is unpacked."""
    length = {key: member.shape[0] for key, member in members.items() if member.nbytes}
    listed = {key for key in MASK_KEYS if key in members and members[key].dtype.kind in "iu"}  # node ids: any length
    nodes: dict[str, int] = {
        key: length[key] for key in ("x", "y", *MASK_KEYS, "names") if key in length.keys() - listed
    }
    if "x_indptr" in length and "x" not in length:
        nodes["x_indptr"] = length["x_indptr"] - 1
    if len(set(nodes.values())) > 1:
        lengths = ", ".join(f"{key} {count}" for key, count in nodes.items())
        raise InputError(f"{path}: arrays have different numbers of nodes ({lengths}): give one row per node")
    edges = members["edge_index"].shape
    if "edge_weight" in members and members["edge_weight"].shape != edges[1:]:
        raise InputError(f"{path}: edge_weight is {members['edge_weight'].shape} for edge_index {edges}: one per edge")
    if "edge_attr" in members and members["edge_attr"].shape[:1] != edges[1:]:
        raise InputError(f"{path}: edge_attr is {members['edge_attr'].shape} for edge_index {edges}: one row per edge")


def features_of(path: Path | str, arrays: dict[str, Array]) -> FeatureMatrix | None:
    if "x" in arrays:
        return arrays["x"]
    if not any(key in arrays for key in CSR_KEYS):
        return None
    missing = [key for key in CSR_KEYS if key not in arrays]
    if missing:
        raise InputError(f"{path} has no x and lacks {', '.join(missing)}: add x, or all of {', '.join(CSR_KEYS)}")
    data, indices, indptr, shape = (arrays[key] for key in CSR_KEYS)
    data = as_real("x_data", data)  # counts may be stored as uint8 or uint16
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise InputError(f"{path}: x_shape has to be two integers, nodes and features: write it again")
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise InputError(f"{path}: x_indices and x_indptr have to be integers: write them again")
    try:
        return sp.csr_array((data, indices, indptr), shape=tuple(int(n) for n in shape))
    except ValueError as bad:
        raise InputError(
            f"{path}: the CSR parts of x do not fit together ({one_line(bad)}): write them again"
        ) from None


def save_npz(graph: Graph | TypedGraph, path: str | Path) -> None:
    """Write `graph` uncompressed, so that `load_npz` restores it; the file appears complete or not at all."""
    path = Path(path)
    if not isinstance(graph, Graph):
        return save_typed_npz(graph, path)
    arrays = {"edge_index": graph.edge_index, **_labels_of(graph), **_features_of(graph.x), **_masks_of(graph)}
    arrays |= {} if graph.pairs is None else arrays_of(graph.pairs)
    if graph.edge_weight is not None:
        arrays["edge_weight"] = graph.edge_weight
    if graph.edge_attr is not None:
        arrays["edge_attr"] = graph.edge_attr
    if graph.names is not None:
        arrays["names"] = graph.names.numpy()
    arrays |= {**graph.fields.nodes, **graph.fields.edges}
    write_npz(path, arrays)


def _labels_of(graph: Any) -> dict[str, Any]:
    labels = {} if "y" in graph.lacks else {"y": graph.y}
    return labels | ({"class_names": np.array(graph.class_names)} if graph.class_names else {})


def _features_of(x: FeatureMatrix) -> dict[str, Any]:
    if not sp.issparse(x):
        return {"x": x}
    return dict(zip(CSR_KEYS, (x.data, x.indices, x.indptr, np.asarray(x.shape, dtype=np.int64)), strict=True))


def _masks_of(graph: Any) -> dict[str, Any]:
    masks = {} if graph.lacks else {name: getattr(graph, name) for name in MASKS}
    return {name: mask[:, 0] if graph.num_splits == 1 else mask for name, mask in masks.items()}


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays uncompressed; the file appears complete or not at all."""
    try:
        sweep(path.absolute().parent)
        with whole_file(path) as staged, staged.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as bad:
        known = explain(bad)
        raise InputError(f"cannot write {path}: {known or one_line(bad)}; choose a folder that has room") from None


_OF_NODES = (*NODE_KEYS, *CSR_KEYS)


def is_typed_npz(path: Path) -> bool:
    """Whether a file is an archive with a typed graph: some array's name holds a slash, and none is edge_index."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError):
        return False
    return "edge_index.npy" not in names and any("/" in name for name in names if name.endswith(".npy"))


def load_typed_npz(path: Path) -> TypedGraph:
    """Load the typed graph in `path`; an uncompressed x stays in the file, memory-mapped."""
    with zipfile.ZipFile(path) as archive:
        held = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    keys: list[str] = []
    unused: list[str] = []
    for name in dict.fromkeys(held):
        owner, _, key = name.rpartition("/")
        known = (*EDGE_KEYS, *PAIRS) if "__" in owner else _OF_NODES
        if key == "edge_index" and "__" not in owner:
            raise InputError(f"{path}: {one_line(name, 80)}: name a relation SOURCE__RELATION__TARGET")
        if "__" in owner and f"{owner}/edge_index" not in held:
            raise InputError(f"{path}: {owner} has {one_line(key, 60)}{nearest(key, known)} and no edge_index: "
                             "add edge_index [2, edges], or leave the relation out")  # fmt: skip
        (keys if owner and key in known else unused).append(name)
    mapped = tuple(key for key in keys if key.endswith("/x"))
    arrays = read_npz(path, (), tuple(keys), mapped=mapped, check=lambda members: _check_edges(path, members))
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[str, dict[str, Any]] = {}
    for name in keys:
        owner, _, key = name.rpartition("/")
        (edges if "__" in owner else nodes).setdefault(owner, {})[key] = arrays[name]
    notes = [f"of {path}, {one_line(', '.join(unused), 120)} {'is' if len(unused) == 1 else 'are'} not used"]
    with _named(path):
        given = {kind: _node_arrays(own, f"{path}: {kind}") for kind, own in nodes.items()}
        return TypedGraph(given, edges, name=path.stem, notes=notes if unused else ())


def _node_arrays(own: dict[str, Array], where: str) -> dict[str, Any]:
    """Return a type's arrays, with the CSR parts of its features as one matrix."""
    parts = [key for key in CSR_KEYS if key in own]
    if "x" in own and parts:
        widths = f" ({own['x'].shape[-1]} and {own['x_shape'][-1]} columns)" if "x_shape" in own else ""
        raise InputError(f"{where} has both x and {parts[0]}{widths}: give a type its features once")
    x = {"x": features_of(where, own)} if parts else {}
    return x | {key: value for key, value in own.items() if key not in CSR_KEYS}


def _check_edges(path: Path, members: Members) -> None:
    """Refuse arrays of edges that cannot belong together, before any of them is unpacked."""
    for name, member in members.items():
        owner, _, key = name.rpartition("/")
        edges = members.get(f"{owner}/edge_index")
        if key in ("edge_weight", "edge_attr") and edges is not None and member.shape[:1] != edges.shape[1:]:
            raise InputError(f"{path}: {name} is {member.shape} for edge_index {edges.shape}: give one row per edge")


def save_typed_npz(graph: TypedGraph, path: str | Path) -> None:
    """Write `graph` uncompressed, so that `load_typed_npz` restores it; the file appears complete or not at all."""
    arrays: dict[str, Any] = {}
    for kind, nodes in graph.nodes.items():
        x = {"num_nodes": np.int64(nodes.num_nodes)} if nodes.x is None else _features_of(nodes.x)
        arrays |= {f"{kind}/{key}": value for key, value in x.items()}
        if nodes.names is not None:
            arrays[f"{kind}/names"] = nodes.names.numpy()
    if graph.pairs is not None:
        relation, pairs = graph.pairs
        arrays |= {f"{spelled(relation)}/{key}": value for key, value in arrays_of(pairs).items()}
    for relation, edges in graph.edges.items():
        own = {"edge_index": edges.edge_index, "edge_weight": edges.edge_weight, "edge_attr": edges.edge_attr}
        arrays |= {f"{spelled(relation)}/{key}": value for key, value in own.items() if value is not None}
    if graph.labels is not None:
        own = _labels_of(graph.labels) | _masks_of(graph.labels)
        arrays |= {f"{graph.target}/{key}": value for key, value in own.items()}
    write_npz(Path(path), arrays)
