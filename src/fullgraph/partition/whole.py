"""The whole graph of a folder of shards, to cut it into another number of parts.

All arrays are equal to those that were cut, in the same order, so that a partitioner finds the same parts as it would
have found then. Features are as they are stored, which means scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fullgraph.data import FeatureScaler, Graph
from fullgraph.data.arrays import Array, FeatureMatrix
from fullgraph.data.csr import index_dtype
from fullgraph.data.fields import Fields
from fullgraph.data.pairs import Pairs
from fullgraph.data.splits import MASKS
from fullgraph.partition.manifest import read_manifest
from fullgraph.partition.part import EDGE_FIELD, NODE_FIELD, PAIRS
from fullgraph.partition.store import read_arrays, read_names, read_scaler
from fullgraph.resources import require_memory

Parts = Sequence[Mapping[str, Array]]


@dataclass(frozen=True, slots=True, eq=False)
class AlreadyScaled(FeatureScaler):
    """The scaler of features that are stored scaled: it is recorded, and changes nothing."""

    def apply(self, block: FeatureMatrix) -> FeatureMatrix:
        return block


def read_graph(folder: str | Path) -> tuple[Graph, AlreadyScaled]:
    """Return the graph of the shards in `folder`, and the scaler that its features went through."""
    manifest, scaler = read_manifest(folder), read_scaler(folder)
    facts = manifest.graph
    require_memory(sum(fact.bytes for fact in manifest.files.values()), f"cutting the graph of {folder} again")
    parts = [read_arrays(folder, manifest, rank) for rank in range(manifest.parts)]
    ids = [part["ids"] for part in parts]
    degree = np.concatenate([np.diff(part["indptr"]) for part in parts])
    indptr = np.zeros(facts.nodes + 1, np.int64)
    np.cumsum(_placed([degree], [np.concatenate(ids)]), out=indptr[1:])
    places = [_places(indptr, part) for part in parts]
    sources = [np.concatenate([part["ids"], part["halo_ids"]])[part["indices"]] for part in parts]

    def rows(name: str) -> Array:
        return _placed([part[name] for part in parts], ids)

    def arcs(name: str) -> Array:
        return _placed([part[name] for part in parts], places)

    graph = Graph.restored(
        indptr=indptr,
        indices=_placed(sources, places).astype(index_dtype(facts.nodes), copy=False),
        x=_sparse_rows(parts, ids, facts.features) if facts.sparse else rows("x"),
        y=rows("y"),
        **{name: rows(name) for name in MASKS},
        edge_weight=arcs("weight") if facts.weighted else None,
        edge_attr=arcs("edge_attr") if facts.edge_features else None,
        pairs=_pairs(parts) if facts.pairs else None,
        name=facts.name,
        num_classes=facts.classes,
        real=facts.real,
        names=read_names(folder),
        fields=Fields(
            {field.name: rows(NODE_FIELD + field.name) for field in facts.node_fields},
            {field.name: arcs(EDGE_FIELD + field.name) for field in facts.edge_fields},
        ),
        lacks=() if facts.labelled else ("labels or masks",),
        class_names=facts.class_names,
        notes=(),
        types=facts.types,
    )
    return graph, AlreadyScaled(scaler.kind, scaler.shift, scaler.scale)


def _placed(pieces: Sequence[Array], places: Sequence[Array]) -> Array:
    """Merge the parts' rows into one array: row k of a piece goes to the k-th of its places."""
    out = np.empty((sum(map(len, places)), *pieces[0].shape[1:]), pieces[0].dtype)
    for piece, at in zip(pieces, places, strict=True):
        out[at] = piece
    return out


def _places(indptr: Array, part: Mapping[str, Array]) -> Array:
    """Return the position of each of a part's arcs among all arcs."""
    shift = indptr[part["ids"]] - part["indptr"][:-1]
    places: Array = np.arange(len(part["indices"])) + np.repeat(shift, np.diff(part["indptr"]))
    return places


def _sparse_rows(parts: Parts, ids: Sequence[Array], columns: int) -> Any:
    pieces = [(part["x_values"], part["x_indices"], part["x_indptr"]) for part in parts]
    stacked = sp.vstack([sp.csr_array(piece, shape=(len(piece[2]) - 1, columns)) for piece in pieces], format="csr")
    return stacked[np.argsort(np.concatenate(ids))]


def _pairs(parts: Parts) -> Pairs:
    index, *values = ([part[name] for part in parts] for name in PAIRS)
    return Pairs(*(_placed(pieces, index) for pieces in values))
