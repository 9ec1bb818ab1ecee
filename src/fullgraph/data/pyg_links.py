"""The three `Data` of PyG's RandomLinkSplit as pairs of one graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, as_numpy
from fullgraph.data.pairs import MASKS
from fullgraph.errors import InputError

LABELS = tuple(f"{sign}edge_label{what}" for sign in ("", "pos_", "neg_") for what in ("", "_index"))
FIX = "give what RandomLinkSplit returns, (train, val, test)"


def link_pairs(splits: Sequence[Any]) -> tuple[dict[str, Array], list[str]]:
    """Return the pairs of all three data, named as in the `.npz` format, and notes about unused edges."""
    if len(splits) != len(MASKS):
        raise InputError(f"{len(splits)} PyG data are not a graph: {FIX}, or one Data")
    parts = [_of_split(data, mask) for data, mask in zip(splits, MASKS, strict=True)]
    counts = {len(data.x) for data in splits if getattr(data, "x", None) is not None}
    if len(counts) > 1:
        raise InputError(f"the three PyG data have {', '.join(map(str, sorted(counts)))} nodes: {FIX} of one graph")
    ends, y = (np.concatenate(both, axis=-1) for both in zip(*parts, strict=True))
    split = np.repeat(np.arange(len(MASKS)), [len(labels) for _, labels in parts])
    pairs = {"pairs": ends.T, "pair_y": y, **{mask: split == number for number, mask in enumerate(MASKS)}}
    more = [_num_arcs(data) - _num_arcs(splits[0]) for data in splits[1:]]
    if not any(more):
        return pairs, []
    told = ", ".join(f"{count:+,} for {what}" for count, what in zip(more, ("val", "test"), strict=True) if count)
    return pairs, [
        f"rows of all pairs are computed from the training edges; the other two PyG data have different edges ({told})"
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
