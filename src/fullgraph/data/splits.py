"""Train, validation and test nodes: masks, lists of node ids, or shares to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullgraph.data.arrays import Array, as_numpy
from fullgraph.errors import InputError, one_line

SPLITS = ("train", "val", "test")
MASKS = tuple(f"{name}_mask" for name in SPLITS)
ALSO = {"valid": "val", "validation": "val"}  # other programs' names
DRAWN = "random:"  # prefix of a random split


def masks_of(find: Callable[[str], Any]) -> dict[str, Any]:
    """Return the masks stored as `train_mask`, `train_idx`, `valid_mask`, ...; None if one is missing."""
    calls = {name: [name, *(other for other, meant in ALSO.items() if meant == name)] for name in SPLITS}
    keys = {name: [f"{call}_{form}" for call in called for form in ("mask", "idx")] for name, called in calls.items()}
    values: dict[str, Any] = {}
    for name, tried in keys.items():
        given = [key for key in tried if find(key) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} say the same thing twice: keep one of them")
        values[name] = find(given[0]) if given else None
    return values


MASK_KEYS = tuple(f"{name}_{form}" for name in (*SPLITS, *ALSO) for form in ("mask", "idx"))


def is_drawn(split: Any) -> bool:
    return isinstance(split, str) and split.startswith(DRAWN)


def shares_of(split: str) -> tuple[float, float]:
    """Return the shares of train and validation nodes in `random:60/20/20`: percents, fractions, or any numbers."""
    numbers: list[float] = []
    with suppress(ValueError):
        numbers = [float(part) for part in split.removeprefix(DRAWN).split("/") if is_drawn(split)]
    total = sum(numbers)
    right = abs(total - 100) < 1e-6 or abs(total - 1) < 1e-6
    if len(numbers) != 3 or not all(number > 0 for number in numbers) or not right:
        raise InputError(
            f"split {one_line(split, 60)}: write random:TRAIN/VAL/TEST, three shares that make 100 (or 1), as in "
            "random:60/20/20"
        )
    return numbers[0] / total, numbers[1] / total


@dataclass(frozen=True)
class Drawn:
    """A random split, as the field of a value."""

    def problem(self, value: Any) -> str | None:
        try:
            shares_of(value)
        except InputError as bad:
            return str(bad).partition(": ")[2]
        return None


def draw_masks(labels: Array, split: str, seed: int) -> dict[str, Array]:
    """Draw a random split of the labelled nodes, where  y != -1,  or where all numbers of a node are finite."""
    train, val = shares_of(split)
    rows = labels.reshape(len(labels), -1)
    known = np.flatnonzero(np.isfinite(rows).all(axis=1) if labels.dtype.kind == "f" else (rows >= 0).all(axis=1))
    masks = random_masks(np.random.default_rng(seed), known.size, train, val)
    return {name: mask_of(known[mask], len(labels)) for name, mask in masks.items()}


def random_masks(rng: np.random.Generator, num_nodes: int, train: float, val: float) -> dict[str, Array]:
    """Draw a random split: `train` and `val` are fractions of the nodes, the rest is the test set."""
    if not (train > 0 and val > 0 and train + val < 1):
        raise InputError(
            f"train={train:g} and val={val:g} leave a split empty: give positive fractions that sum below 1"
        )
    if num_nodes < 3:
        raise InputError(f"{num_nodes} nodes cannot be split three ways: give at least 3")
    num_train = min(max(1, round(train * num_nodes)), num_nodes - 2)
    num_val = min(max(1, round(val * num_nodes)), num_nodes - num_train - 1)
    order = rng.permutation(num_nodes)
    cuts = np.split(order, [num_train, num_train + num_val])
    return {name: mask_of(ids, num_nodes) for name, ids in zip(SPLITS, cuts, strict=True)}


def mask_of(ids: Array, num_nodes: int) -> Array:
    """Return bool [N], True at the nodes in `ids`."""
    mask = np.zeros(num_nodes, dtype=bool)
    mask[ids] = True
    return mask


def missing_of(y: Any, masks: Any, num_nodes: int) -> tuple[str, ...]:
    """Name the parts that training needs and that are missing. Masks that mark no node count as missing."""
    three = (None,) * 3 if masks is None else _three(masks)
    given = {n: _mask(n, mask, num_nodes) for n, mask in zip(SPLITS, three, strict=True) if mask is not None}
    missing = [f"{name}_mask" for name in SPLITS if name not in given]
    if not missing and not any(mask.any() for mask in given.values()):
        missing = ["a node in its masks"]
    return (*(["y"] if y is None else []), *missing)


def check_masks(masks: Any, num_nodes: int) -> tuple[Array, Array, Array]:
    """Return the three masks as bool [N, K]; in every split each mask marks a node, and no node is in two masks."""
    three = tuple(_mask(name, value, num_nodes) for name, value in zip(SPLITS, _three(masks), strict=True))
    num_splits = max(mask.shape[1] for mask in three)
    for name, mask in zip(SPLITS, three, strict=True):
        if mask.shape[1] not in (1, num_splits):
            raise InputError(
                f"{name}_mask has {mask.shape[1]} splits where another mask has {num_splits}: give all masks the same"
            )
    train, val, test = (np.ascontiguousarray(np.broadcast_to(mask, (num_nodes, num_splits))) for mask in three)
    for name, mask in zip(SPLITS, (train, val, test), strict=True):
        empty = np.flatnonzero(~mask.any(axis=0))
        if empty.size:
            raise InputError(f"{name}_mask is empty{_in_split(empty[0], num_splits)}: mark at least one node")
    for a, b, left, right in (("train", "val", train, val), ("train", "test", train, test), ("val", "test", val, test)):
        both = left & right
        if both.any():
            node, split = (int(v) for v in np.argwhere(both)[0])
            raise InputError(
                f"{a}_mask and {b}_mask overlap (node {node}{_in_split(split, num_splits)}): "
                "a node may be in one mask only"
            )
    return train, val, test


def _three(masks: Any) -> tuple[Any, Any, Any]:
    if isinstance(masks, Mapping):
        masks = {ALSO.get(name, name): mask for name, mask in masks.items()}
        missing = [name for name in SPLITS if name not in masks]
        if missing:
            raise InputError(f"masks lacks {', '.join(missing)}: give a mapping with train, val and test")
        return masks["train"], masks["val"], masks["test"]
    if isinstance(masks, (tuple, list)) and len(masks) == 3:
        return masks[0], masks[1], masks[2]
    raise InputError(
        "masks has to be a mapping with train, val and test, or those three in a tuple: give one of the two"
    )


def _mask(name: str, value: Any, num_nodes: int) -> Array:
    """Return bool [N, K] from booleans, zeros and ones, or a list of node ids."""
    given = mask = as_numpy(value)
    if mask.dtype.kind in "iu":
        whole = mask.shape[:1] == (num_nodes,) and num_nodes > 2 and bool(((mask == 0) | (mask == 1)).all())
        mask = mask.astype(bool) if whole else _listed(name, mask, num_nodes)
    if mask.dtype != np.bool_:
        raise InputError(f"{name}_mask has the type {mask.dtype}: give booleans, one per node, or a list of node ids")
    if mask.ndim == 1:
        mask = mask[:, None]
    if mask.ndim != 2 or mask.shape[0] != num_nodes or mask.shape[1] == 0:
        raise InputError(
            f"{name}_mask has shape {given.shape} for the {num_nodes} nodes of x: "
            "give [nodes] or [nodes, splits], or a list of node ids"
        )
    return mask


def _listed(name: str, ids: Array, num_nodes: int) -> Array:
    """Return a mask from a list of node ids, which is OGB's form of a split."""
    if ids.ndim != 1:
        raise InputError(f"{name}_mask is {ids.dtype} {ids.shape}: give booleans, one per node, or a list of node ids")
    if ids.size and (ids.min() < 0 or ids.max() >= num_nodes):
        bad = int(ids.min() if ids.min() < 0 else ids.max())
        raise InputError(f"{name}_mask lists the node id {bad}, but ids run from 0 to {num_nodes - 1}: fix the ids")
    mask = mask_of(ids, num_nodes)
    if int(mask.sum()) != ids.size:
        raise InputError(f"{name}_mask lists a node id more than once: list each node once, or give booleans")
    return mask


def _in_split(split: int, num_splits: int) -> str:
    return f" in split {split}" if num_splits > 1 else ""
