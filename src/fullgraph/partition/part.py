"""`Part`: one rank's share of the graph.

Legend: n owned rows, h halo rows, e arcs into owned rows, s rows sent, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.splits import MASKS
from fullgraph.partition.manifest import GraphFacts, Manifest

if TYPE_CHECKING:  # partitioning must not import torch
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of a sparse matrix, compressed by row."""

    indptr: Tensor  # int64 [n+1]
    indices: Tensor  # int32 [nnz]
    values: Tensor  # [nnz]
    num_cols: int


@dataclass(frozen=True, eq=False)
class PartPairs:
    """Pairs whose first node a part owns; all ids are global."""

    index: Tensor  # int64 [p], positions in the graph's pairs
    ends: Tensor  # int64 [p, 2]
    y: Tensor  # uint8 [p]: 1 is an edge
    split: Tensor  # uint8 [p]: 0 train, 1 val, 2 test, 3 none


@dataclass(frozen=True, eq=False)
class Part:
    """A rank's rows: arcs into owned nodes. Columns 0..n-1 are owned nodes, n..n+h-1 halo nodes.

    Tensors from a folder are memory-mapped copy-on-write: writing to one changes this process's copy only.
    """

    rank: int
    parts: int
    manifest: Manifest
    ids: Tensor  # int64 [n], global, ascending
    halo_ids: Tensor  # int64 [h], global, grouped by owner, ascending within a group
    indptr: Tensor  # int64 [n+1]
    indices: Tensor  # int32 [e]
    weight: Tensor | None  # [e]
    x: Tensor | SparseRows  # [n, F], in the given type
    y: Tensor  # int64 [n], or float32 [n, C]
    train_mask: Tensor  # bool [n], of one split
    val_mask: Tensor
    test_mask: Tensor
    recv_counts: tuple[int, ...]  # halo rows owned by each peer
    send_counts: tuple[int, ...]  # rows each peer needs
    send_rows: Tensor  # int64 [s], owned rows by peer, in the order of that peer's halo_ids
    position: Tensor | None = None  # int64 [n], the best order for computing rows
    attr: Tensor | None = None  # [e, K], edge features
    node_fields: Mapping[str, Tensor] = field(default_factory=dict)  # [n, ...] by name
    edge_fields: Mapping[str, Tensor] = field(default_factory=dict)  # [e, ...] by name
    pairs: PartPairs | None = None
    undirected: bool = False  # True: the reverse of every arc between owned nodes exists; False: unknown
    folder: Path | None = None  # of its files; None: it is in memory


PAIRS = ("pair_index", "pair_ends", "pair_y", "pair_split")
NODE_FIELD, EDGE_FIELD = "node_field.", "edge_field."  # what the names of their arrays begin with


def array_names(facts: GraphFacts) -> tuple[str, ...]:
    """Return the names of a part's arrays; `position` may be added."""
    structure = ("ids", "halo_ids", "indptr", "indices", "recv_counts", "send_counts", "send_rows")
    features = ("x_indptr", "x_indices", "x_values") if facts.sparse else ("x",)
    labels = ("y", *MASKS)
    arcs = (("weight",) if facts.weighted else ()) + (("edge_attr",) if facts.edge_features else ())
    fields = tuple(NODE_FIELD + one.name for one in facts.node_fields)
    fields += tuple(EDGE_FIELD + one.name for one in facts.edge_fields)
    return structure + arcs + features + labels + fields + (PAIRS if facts.pairs else ())


def assemble(
    arrays: Mapping[str, Array], rank: int, manifest: Manifest, split: int, folder: Path | None = None
) -> Part:  # fmt: skip
    """Build a part from its arrays; masks are [n, K] and `split` selects a column. folder: of the arrays' files."""
    import torch

    facts = manifest.graph
    assert 0 <= split < facts.splits
    tensor = {name: torch.from_numpy(array) for name, array in arrays.items() if name not in MASKS}
    masks = {name: torch.from_numpy(np.array(arrays[name][:, split])) for name in MASKS}
    x: Tensor | SparseRows
    if facts.sparse:
        x = SparseRows(tensor["x_indptr"], tensor["x_indices"], tensor["x_values"], facts.features)
    else:
        x = tensor["x"]
    return Part(
        rank=rank,
        parts=manifest.parts,
        manifest=manifest,
        ids=tensor["ids"],
        halo_ids=tensor["halo_ids"],
        indptr=tensor["indptr"],
        indices=tensor["indices"],
        weight=tensor.get("weight"),
        x=x,
        y=tensor["y"],
        train_mask=masks["train_mask"],
        val_mask=masks["val_mask"],
        test_mask=masks["test_mask"],
        recv_counts=tuple(tensor["recv_counts"].tolist()),
        send_counts=tuple(tensor["send_counts"].tolist()),
        send_rows=tensor["send_rows"],
        position=tensor.get("position"),
        attr=tensor.get("edge_attr"),
        node_fields={one.name: tensor[NODE_FIELD + one.name] for one in facts.node_fields},
        edge_fields={one.name: tensor[EDGE_FIELD + one.name] for one in facts.edge_fields},
        pairs=PartPairs(*(tensor[name] for name in PAIRS)) if facts.pairs else None,
        folder=folder,
    )
