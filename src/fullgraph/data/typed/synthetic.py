"""`typed:` a synthetic typed graph of any size; its labels can be learned only by distinguishing its relations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any

import numpy as np

from fullgraph.data.arrays import Array
from fullgraph.data.splits import random_masks
from fullgraph.data.synthetic import Classes, Noise, Seed, Share, Width, planted_features, require_graph_fits
from fullgraph.data.typed.graph import TypedGraph
from fullgraph.errors import InputError
from fullgraph.values import Range, Value

TARGET = "item"


@dataclass(frozen=True, kw_only=True)
class Typed(Value):
    """`types` node types: item, with labels, then kind1, kind2, ..., each `ratio` times as large as the one before.

    Every node has a group, of as many groups as classes; an item's class is its group. Relations come in pairs with the
    same source type: the first one, `tells0`, joins items to sources of their own group with probability p_in, the
    second one, `hides0`, to sources of another group, which is drawn for each item. Seen as one relation, both groups
    are equally likely. Each has `edges` edges (-1: five per item), and a reverse unless reverse=0.

    The first `featured` types have features: noise on items, and on others the mean of the group plus `noise` times
    white noise.
    """

    nodes: Annotated[int, Range(3, 2**31)] = 10_000  # items
    types: Annotated[int, Range(1, 1000)] = 3
    ratio: Annotated[float, Range(0, 1000, above=True)] = 0.5
    relations: Annotated[int, Range(1, 10_000)] = 4
    edges: Annotated[int, Range(-1, 2**48)] = -1
    reverse: bool = True
    classes: Classes = 8
    features: Width = 64
    featured: Annotated[int, Range(0, 1000)] = 2
    noise: Noise = 1.0
    p_in: Share = 0.9
    train: Share = 0.6
    val: Share = 0.2
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.sizes) < self.classes:
            raise InputError(
                f"the smallest type has {min(self.sizes)} nodes for {self.classes} classes: give more nodes"
            )

    @property
    def sizes(self) -> list[int]:
        return [round(self.nodes * self.ratio**number) for number in range(self.types)]

    @property
    def num_edges(self) -> int:
        return 5 * self.nodes if self.edges < 0 else self.edges

    def __call__(self) -> TypedGraph:
        return typed_graph(self)


def typed_graph(options: Typed) -> TypedGraph:
    """Draw groups, then edges by relation, then features."""
    sizes, classes = options.sizes, options.classes
    require_graph_fits(
        "typed", nodes=sum(sizes), edges=options.relations * options.num_edges, classes=classes,
        features=options.features if options.featured else 1,
    )  # fmt: skip
    rng = np.random.default_rng(options.seed)
    names = [TARGET, *(f"kind{number}" for number in range(1, options.types))]
    groups = [(np.arange(size, dtype=np.int32) % classes)[rng.permutation(size)] for size in sizes]
    # For each pair of relations, another group of every item: c + 1 + u mod C, where u is below C - 1.
    edges: dict[tuple[str, str, str], Any] = {}
    for number in range(options.relations):
        source = 1 + number // 2 % (options.types - 1) if options.types > 1 else 0
        tells = number % 2 == 0
        wanted = groups[0] if tells else (groups[0] + 1 + rng.integers(0, max(1, classes - 1), sizes[0])) % classes
        drawn = _edges(rng, groups[source], wanted, options)
        name = f"{'tells' if tells else 'hides'}{number // 2}"
        edges[names[source], name, TARGET] = drawn
        if options.reverse:
            edges[TARGET, f"rev_{name}", names[source]] = drawn[::-1]
    nodes: dict[str, dict[str, Any]] = {}
    for number, (name, group) in enumerate(zip(names, groups, strict=True)):
        nodes[name] = {"num_nodes": len(group)}
        if number < options.featured:
            shown = group if number else rng.permutation(group)
            nodes[name]["x"] = planted_features(rng, shown, classes, options.features, options.noise)
    masks = random_masks(rng, sizes[0], options.train, options.val)
    nodes[TARGET] |= {"y": groups[0].astype(np.int64)} | {f"{split}_mask": mask for split, mask in masks.items()}
    return TypedGraph(nodes, edges, name="typed")


def _edges(rng: np.random.Generator, group: Array, wanted: Array, options: Typed) -> Array:
    """Return edges [2, E] into random items from sources of the wanted group, or from any with probability 1 - p_in."""
    order = np.argsort(group, kind="stable").astype(np.int32)
    bounds = list(accumulate(np.bincount(group, minlength=options.classes).tolist(), initial=0))
    first, size = (np.array(part) for part in (bounds[:-1], [high - low for low, high in pairwise(bounds)]))
    out = np.empty((2, options.num_edges), dtype=np.int32)
    for low in range(0, options.num_edges, 1 << 20):  # in blocks, so that temporary arrays stay small
        into = rng.integers(0, len(wanted), min(1 << 20, options.num_edges - low), dtype=np.int32)
        asked = wanted[into]
        member = order[first[asked] + (rng.random(len(into)) * size[asked]).astype(np.int64)]
        anyone = rng.integers(0, len(group), len(into), dtype=np.int32)
        out[0, low : low + len(into)] = np.where(rng.random(len(into)) < options.p_in, member, anyone)
        out[1, low : low + len(into)] = into
    return out
