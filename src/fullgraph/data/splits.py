"""Train, validation and test masks from fractions or from lists of node ids."""

from __future__ import annotations

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.errors import InputError


def random_masks(rng: np.random.Generator, num_nodes: int, train: float, val: float) -> dict[str, Array]:
    """A random split: `train` and `val` are fractions of the nodes, the rest is the test set."""
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
    return {name: mask_of(ids, num_nodes) for name, ids in zip(("train", "val", "test"), cuts, strict=True)}


def mask_of(ids: Array, num_nodes: int) -> Array:
    """bool [N], True at the nodes in `ids`."""
    mask = np.zeros(num_nodes, dtype=bool)
    mask[ids] = True
    return mask
