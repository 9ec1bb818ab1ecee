"""Pairs of nodes, with or without an edge, for link prediction; and how they are drawn from a graph's edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullgraph.data import csr
from fullgraph.data.arrays import Array, as_numpy, frozen
from fullgraph.errors import InputError

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3  # split of a pair
MASKS = ("pair_train_mask", "pair_val_mask", "pair_test_mask")
KEYS = ("pairs", "pair_y", *MASKS)


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs: their nodes, whether each is an edge, and the split of each."""

    ends: Array  # int64 [P, 2]
    y: Array  # uint8 [P]: 1 is an edge
    split: Array  # uint8 [P]: 0 train, 1 val, 2 test, 3 none

    def __len__(self) -> int:
        return len(self.y)

    def has_negatives(self, split: int) -> bool:
        """Whether a split holds pairs without an edge; if not, such pairs are drawn."""
        return bool((self.y[self.split == split] == 0).any())


def check_pairs(given: Any, num_nodes: int, num_second: int | None = None) -> Pairs | None:
    """Return pairs from a mapping of arrays with the names of the `.npz` format; None if there are none.

    num_second: the number of possible second nodes, if those are of another type.
    """
    if given is None or isinstance(given, Pairs):
        return given
    if not isinstance(given, Mapping) or "pairs" not in given:
        raise InputError(f"pairs has to be a mapping with {', '.join(KEYS)}; pair_y may be left out")
    unknown = [str(key) for key in given if key not in KEYS]
    lacks = [key for key in MASKS if given.get(key) is None]
    if unknown or lacks:
        problem = f"lacks {', '.join(lacks)}" if lacks else f"has unknown names {', '.join(unknown)}"
        raise InputError(f"pairs {problem}: give {', '.join(KEYS)}; pair_y may be left out")
    ends = _ends(as_numpy(given["pairs"]), (num_nodes, num_nodes if num_second is None else num_second))
    y = np.ones(len(ends), np.uint8) if given.get("pair_y") is None else as_numpy(given["pair_y"])
    if y.shape != (len(ends),) or y.dtype.kind not in "iubf" or not ((y == 0) | (y == 1)).all():
        raise InputError(f"pair_y of shape {y.shape} for {len(ends)} pairs: give 1 (an edge) or 0 for each")
    return Pairs(frozen(ends), frozen(y.astype(np.uint8)), frozen(_split(given, len(ends), y)))


def _ends(pairs: Array, counts: tuple[int, int]) -> Array:
    """Return ends [P, 2] from [2, P], the layout of edge_index, or from [P, 2]; counts: of first and second nodes."""
    if pairs.ndim != 2 or 2 not in pairs.shape or pairs.dtype.kind not in "iu":
        raise InputError(f"pairs is {pairs.dtype} {pairs.shape}: give node ids [2, pairs], or [pairs, 2]")
    ends = (pairs.T if pairs.shape[0] == 2 else pairs).astype(np.int64)
    for column, count in zip(ends.T if ends.size else (), counts, strict=False):
        if column.min() < 0 or column.max() >= count:
            bad = int(column.min()) if column.min() < 0 else int(column.max())
            raise InputError(f"pairs holds the node id {bad}, but ids run from 0 to {count - 1}: fix the ids")
    return np.ascontiguousarray(ends)


def _split(given: Mapping[str, Any], count: int, y: Array) -> Array:
    split = np.full(count, UNUSED, dtype=np.uint8)
    for number, name in enumerate(MASKS):
        mask = as_numpy(given[name])
        if mask.dtype != np.bool_ or mask.shape != (count,):
            raise InputError(f"{name} is {mask.dtype} {mask.shape} for {count} pairs: give one boolean per pair")
        if (split[mask] != UNUSED).any():
            raise InputError(f"{name} overlaps another one (pair {int(np.flatnonzero(mask & (split != UNUSED))[0])}): "
                             "a pair may be in one mask only")  # fmt: skip
        if not (y[mask] == 1).any():
            raise InputError(f"{name} marks no pair that is an edge: mark at least one")
        split[mask] = number
    return split


def arrays_of(pairs: Pairs) -> dict[str, Array]:
    """Return the arrays that `check_pairs` reads."""
    masks = {name: pairs.split == number for number, name in enumerate(MASKS)}
    return {"pairs": pairs.ends.T, "pair_y": pairs.y, **masks}


def drawn(
    indptr: Array, indices: Array, val: float, test: float, seed: int, *, relation: Array | None = None,
    own: int = 0, others: Sequence[int] = (),
) -> tuple[Pairs, Array]:  # fmt: skip
    """Return all edges as pairs, with shares held out for validation and test; and a mask [E] of the held-out arcs.

    An edge is two different nodes with any number of arcs between them, in either direction; a pair has the direction
    of one of these arcs.

    relation [E]: of the arcs of a typed graph; then pairs are the edges of the relation `own`, in its direction, and
    held-out edges also leave the relations `others`.
    """
    source, target, number = _numbered(indptr, indices)
    real = np.flatnonzero(source != target)
    if relation is not None:
        real = np.concatenate([real[relation[real] == own], real[np.isin(relation[real], others)]])
    _, first, edge = np.unique(number[real], return_index=True, return_inverse=True)
    edges = len(first)
    sizes = round(val * edges), round(test * edges)
    if min(*sizes, edges - sum(sizes)) < 1:
        raise InputError(f"val={val:g} and test={test:g} of {edges} edges leave a split empty: choose other shares")
    split = np.zeros(edges, dtype=np.uint8)
    order = np.random.default_rng(seed).permutation(edges)
    split[order[: sizes[0]]], split[order[sizes[0] : sum(sizes)]] = VAL, TEST
    held_out = np.zeros(len(indices), dtype=np.bool_)
    held_out[real] = split[edge] != TRAIN
    ends = np.stack([source[real[first]], target[real[first]]], axis=1)  # of arcs of `own`, which come first
    return Pairs(frozen(ends), frozen(np.ones(edges, np.uint8)), frozen(split)), held_out


def same_edges(indptr: Array, indices: Array, relation: Array, own: int, candidates: Sequence[int]) -> list[int]:
    """Return the candidates that join the same nodes as the relation `own`, in either direction."""
    number = _numbered(indptr, indices)[2]
    wanted = np.unique(number[relation == own])
    return [other for other in candidates if np.array_equal(np.unique(number[relation == other]), wanted)]


def _numbered(indptr: Array, indices: Array) -> tuple[Array, Array, Array]:
    """Return the sources, the targets and the edges' numbers of all arcs; a number does not depend on the direction."""
    source, target = indices.astype(np.int64), csr.targets(indptr, np.dtype(np.int64))
    return source, target, np.minimum(source, target) * (len(indptr) - 1) + np.maximum(source, target)
