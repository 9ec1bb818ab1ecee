"""Functions that all generators share: distinct edges, planted features, and the assembly of a `Graph`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.graph import Graph
from fullgraph.data.splits import random_masks
from fullgraph.errors import InputError
from fullgraph.resources import require_memory
from fullgraph.values import Range, Value

Draw = Callable[[int], tuple[Array, Array]]


# Options of all generators. Node ids are 32-bit.
Nodes = Annotated[int, Range(0, 2**31)]
Edges = Annotated[int, Range(-1, 2**48)]
Classes = Annotated[int, Range(1, 2**31)]
Width = Annotated[int, Range(1, 2**31)]
Share = Annotated[float, Range(0, 1)]
Noise = Annotated[float, Range(0, 1e6)]
Seed = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class Planted(Value):
    """Options of every generator: edges, classes, features and splits."""

    edges: Edges = -1
    classes: Classes = 10
    features: Width = 64
    noise: Noise = 1.0
    train: Share = 0.6
    val: Share = 0.2
    directed: bool = False
    seed: Seed = 0


def require_graph_fits(kind: str, *, nodes: int, edges: int, classes: int, features: int) -> None:
    """Refuse a graph that does not fit this machine's memory, before any of it is drawn."""
    # A lower bound: features, class means, and edges as drawn, as keys, and in a sorted set.
    least = 4 * features * (nodes + classes) + 40 * edges + 16 * nodes
    require_memory(least, f"{kind}: a graph of {nodes:,} nodes and {edges:,} edges", "give fewer of them")


def distinct_edges(rng: np.random.Generator, count: int, num_nodes: int, draw: Draw, *, crowded: str) -> Array:
    """Return `count` different unordered pairs u < v as keys u * N + v, ascending; `draw(k)` proposes k pairs.

    Duplicates are removed and replaced; surplus pairs are removed at random, so that no pair is favoured by its key.
    `crowded` is the error's text if proposals bring hardly any new pairs.
    """
    keys = np.empty(0, dtype=np.int64)
    while keys.size < count:
        missing = count - keys.size
        u, v = draw(missing + missing // 16 + 64)
        fresh = np.minimum(u, v).astype(np.int64)
        fresh *= num_nodes
        fresh += np.maximum(u, v)
        fresh = fresh[u != v]
        before = keys.size
        keys = _sorted_set(np.concatenate([keys, fresh]))
        if keys.size - before < missing // 50:
            raise InputError(crowded)
    if keys.size > count:
        keys = np.delete(keys, rng.choice(keys.size, keys.size - count, replace=False))
    return keys


def _sorted_set(keys: Array) -> Array:
    keys.sort()
    first = np.ones(keys.size, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first]


def arcs_of(rng: np.random.Generator, keys: Array, num_nodes: int, *, directed: bool) -> Array:
    """Return edge_index of the pairs in `keys`: both directions, or one of the two at random."""
    u, v = (part.astype(np.int32) for part in np.divmod(keys, num_nodes))
    if not directed:
        return np.stack([np.concatenate([u, v]), np.concatenate([v, u])])
    turn = rng.random(keys.size) < 0.5
    return np.stack([np.where(turn, v, u), np.where(turn, u, v)])


def planted_features(rng: np.random.Generator, labels: Array, num_classes: int, width: int, noise: float) -> Array:
    """x_i = m[y_i] + noise * e_i / sqrt(2),  unit class means m (about sqrt(2) apart), standard normal e."""
    means = rng.standard_normal((num_classes, width), dtype=np.float32)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    x = rng.standard_normal((labels.size, width), dtype=np.float32)
    x *= noise / np.sqrt(2.0)
    for start in range(0, labels.size, 1 << 16):  # in blocks, so that means[labels] stays small
        rows = slice(start, start + (1 << 16))
        x[rows] += means[labels[rows]]
    return x


def planted_graph(rng: np.random.Generator, edges: Array, labels: Array, options: Planted, name: str) -> Graph:
    """Return a graph with the given edges and labels, noisy class features and a random split."""
    x = planted_features(rng, labels, options.classes, options.features, options.noise)
    masks = random_masks(rng, labels.size, options.train, options.val)
    return Graph(edges, x, labels, masks, name=name)
