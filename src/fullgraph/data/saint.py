"""GraphSAINT's data folders (Zeng et al., arXiv:1907.04931): Reddit, Yelp, Flickr, Amazon, PPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, as_numpy
from fullgraph.data.files import foreign, need_file, read_npz
from fullgraph.data.graph import Graph
from fullgraph.data.splits import mask_of
from fullgraph.errors import InputError
from fullgraph.resources import require_memory
from fullgraph.storage import parse_json, read_text

_FIX = "a GraphSAINT folder holds adj_full.npz, feats.npy, class_map.json and role.json"


def load_saint(folder: str | Path) -> Graph:
    """Load a folder with adj_full.npz (row = target), feats.npy and, for training, class_map.json and role.json.

    Features stay memory-mapped. adj_train.npz, the arcs between training nodes, is not read: inductive training
    computes that subgraph from the masks. Values of adj_full become edge weights only if some differ from 1.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: {_FIX}")
    x = _features(need_file(folder / "feats.npy", _FIX))
    need_file(folder / "adj_full.npz", _FIX)
    adj = read_npz(folder / "adj_full.npz", ("data", "indices", "indptr", "shape"), ("format",))
    if "format" in adj and adj["format"].tobytes().replace(b"\0", b"") != b"csr":  # a text of 1- or 4-byte characters
        raise InputError(f"{folder / 'adj_full.npz'} is not in CSR form: save scipy.sparse's tocsr() of it")
    if adj["shape"].tolist() != [x.shape[0], x.shape[0]]:
        raise InputError(
            f"{folder}: adj_full.npz is {adj['shape'].tolist()} and feats.npy has {x.shape[0]} rows: {_FIX}"
        )
    weight = None if (adj["data"] == 1).all() else adj["data"]
    return Graph.from_csr(
        adj["indptr"],
        adj["indices"],
        x,
        _labels(folder / "class_map.json", x.shape[0]),
        _masks(folder / "role.json", x.shape[0]),
        edge_weight=weight,
        name=folder.resolve().name,
    )


def _features(path: Path) -> Array:
    with foreign(path, "save a plain float array with numpy.save"):
        x: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(x, np.ndarray) or x.ndim != 2:
        raise InputError(f"{path} is not a matrix [nodes, features]: save one with numpy.save")
    return x


def _labels(path: Path, num_nodes: int) -> Array | None:
    if not path.exists():
        return None
    class_map = _json(path)
    try:
        return np.asarray([class_map[str(node)] for node in range(num_nodes)])
    except KeyError as missing:
        raise InputError(f"{path} has no class for node {missing}: give every node a class") from None
    except ValueError:
        raise InputError(f"{path} gives nodes lists of different lengths: give every node the same number") from None


def _masks(path: Path, num_nodes: int) -> dict[str, Array] | None:
    if not path.exists():
        return None
    role = _json(path)
    masks = {}
    for name, key in (("train", "tr"), ("val", "va"), ("test", "te")):
        if key not in role:
            raise InputError(f"{path} lacks '{key}': give the lists tr, va and te")
        ids = as_numpy(role[key] or np.empty(0, dtype=np.int64))
        if ids.dtype.kind != "i" or ids.ndim != 1:
            raise InputError(f"{path} has to list node ids in '{key}': write whole numbers")
        if ids.size and (ids.min() < 0 or ids.max() >= num_nodes):
            raise InputError(f"{path} names nodes outside 0 to {num_nodes - 1} in '{key}': remove them")
        masks[name] = mask_of(ids, num_nodes)
    return masks


def _json(path: Path) -> dict[str, Any]:
    require_memory(8 * need_file(path, _FIX).stat().st_size, f"reading {path}")
    value = parse_json(read_text(path, fix="write it again", limit=1 << 33), path, "write it again")
    if not isinstance(value, dict):
        raise InputError(f"{path} has to hold a JSON object: write it again")
    return value
