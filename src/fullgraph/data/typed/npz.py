"""Read and write typed graphs as `.npz` files: TYPE/x, SOURCE__RELATION__TARGET/edge_index, TYPE/y, ..."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data.arrays import Array
from fullgraph.data.files import Members, read_npz
from fullgraph.data.npz import CSR_KEYS, MASKS, features_of, write_npz
from fullgraph.data.typed.graph import EDGE_KEYS, NODE_KEYS, TypedGraph, spelled
from fullgraph.errors import InputError, one_line

_OF_NODES = (*NODE_KEYS, *CSR_KEYS)


def is_typed_npz(path: Path) -> bool:
    """Whether a file is an archive with a typed graph: some array's name holds a slash, and none is edge_index."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError):
        return False
    return "edge_index.npy" not in names and any("/" in name for name in names)


def load_typed_npz(path: Path) -> TypedGraph:
    """Load the typed graph in `path`; an uncompressed x stays in the file, memory-mapped."""
    with zipfile.ZipFile(path) as archive:
        held = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    keys: list[str] = []
    unused: list[str] = []
    for name in dict.fromkeys(held):
        owner, _, key = name.rpartition("/")
        known = EDGE_KEYS if "__" in owner else _OF_NODES
        (keys if owner and key in known else unused).append(name)
    mapped = tuple(key for key in keys if key.endswith("/x"))
    arrays = read_npz(path, (), tuple(keys), mapped=mapped, check=lambda members: _check_lengths(path, members))
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[str, dict[str, Any]] = {}
    for name in keys:
        owner, _, key = name.rpartition("/")
        (edges if "__" in owner else nodes).setdefault(owner, {})[key] = arrays[name]
    notes = [f"of {path}, {one_line(', '.join(unused), 120)} {'is' if len(unused) == 1 else 'are'} not used"]
    try:
        given = {kind: _node_arrays(own, f"{path}: {kind}") for kind, own in nodes.items()}
        return TypedGraph(given, edges, name=path.stem, notes=notes if unused else ())
    except InputError as bad:
        text = str(bad)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def _node_arrays(own: dict[str, Array], where: str) -> dict[str, Any]:
    """Return a type's arrays, with the CSR parts of its features as one matrix."""
    parts = [key for key in CSR_KEYS if key in own]
    if "x" in own and parts:
        widths = f" ({own['x'].shape[-1]} and {own['x_shape'][-1]} columns)" if "x_shape" in own else ""
        raise InputError(f"{where} has both x and {parts[0]}{widths}: give a type its features once")
    x = {"x": features_of(where, own)} if parts else {}
    return x | {key: value for key, value in own.items() if key not in CSR_KEYS}


def _check_lengths(path: Path, members: Members) -> None:
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
        if nodes.x is None:
            arrays[f"{kind}/num_nodes"] = np.int64(nodes.num_nodes)
        elif sp.issparse(nodes.x):
            parts = (nodes.x.data, nodes.x.indices, nodes.x.indptr, np.asarray(nodes.x.shape, dtype=np.int64))
            arrays |= {f"{kind}/{key}": part for key, part in zip(CSR_KEYS, parts, strict=True)}
        else:
            arrays[f"{kind}/x"] = nodes.x
        if nodes.names is not None:
            arrays[f"{kind}/names"] = nodes.names.numpy()
    for relation, edges in graph.edges.items():
        own = {"edge_index": edges.edge_index, "edge_weight": edges.edge_weight, "edge_attr": edges.edge_attr}
        arrays |= {f"{spelled(relation)}/{key}": value for key, value in own.items() if value is not None}
    labels = graph.labels
    if labels is not None:
        if "y" not in labels.lacks:
            arrays[f"{graph.target}/y"] = labels.y
        if labels.class_names:
            arrays[f"{graph.target}/class_names"] = np.array(labels.class_names)
        for key in () if labels.lacks else MASKS:
            mask = getattr(labels, key)
            arrays[f"{graph.target}/{key}"] = mask[:, 0] if labels.num_splits == 1 else mask
    write_npz(Path(path), arrays)
