"""Read and write the project's own `.npz` graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array, FeatureMatrix
from fullgraph.data.fields import belongs
from fullgraph.data.files import Members, read_npz
from fullgraph.data.graph import Graph
from fullgraph.data.pairs import KEYS as PAIRS
from fullgraph.data.pairs import arrays_of
from fullgraph.data.splits import MASK_KEYS, masks_of
from fullgraph.data.validate import as_real
from fullgraph.errors import InputError, explain, one_line
from fullgraph.storage import sweep, whole_file

if TYPE_CHECKING:
    from fullgraph.data.typed import TypedGraph

CSR_KEYS = ("x_data", "x_indices", "x_indptr", "x_shape")
MASKS = ("train_mask", "val_mask", "test_mask")
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
    try:
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
        from fullgraph.data.typed.npz import save_typed_npz

        return save_typed_npz(graph, path)
    arrays: dict[str, Any] = {"edge_index": graph.edge_index}
    if "y" not in graph.lacks:
        arrays["y"] = graph.y
    if graph.class_names:
        arrays["class_names"] = np.array(graph.class_names)
    if sp.issparse(graph.x):
        arrays |= {"x_data": graph.x.data, "x_indices": graph.x.indices, "x_indptr": graph.x.indptr}
        arrays["x_shape"] = np.asarray(graph.x.shape, dtype=np.int64)
    else:
        arrays["x"] = graph.x
    for name in () if graph.lacks else MASKS:
        mask = getattr(graph, name)
        arrays[name] = mask[:, 0] if graph.num_splits == 1 else mask
    arrays |= {} if graph.pairs is None else arrays_of(graph.pairs)
    if graph.edge_weight is not None:
        arrays["edge_weight"] = graph.edge_weight
    if graph.edge_attr is not None:
        arrays["edge_attr"] = graph.edge_attr
    if graph.names is not None:
        arrays["names"] = graph.names.numpy()
    arrays |= {**graph.fields.nodes, **graph.fields.edges}
    write_npz(path, arrays)


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays uncompressed; the file appears complete or not at all."""
    try:
        sweep(path.absolute().parent)
        with whole_file(path) as staged, staged.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as bad:
        known = explain(bad)
        raise InputError(f"cannot write {path}: {known or one_line(bad)}; choose a folder that has room") from None
