"""Marks: which rows a tensor holds. Every tensor of a distributed forward pass is one of these:

    Rows      one row for each of a set of nodes or edges, which is spread over the ranks
    Even      the same numbers along some dimensions, such as zeros or an expanded row: it fits rows of any set
    PARTIAL   this rank's share of a sum over all ranks
    no mark   the same tensor on every rank

A mark is an attribute of the tensor. Torch keeps a tensor's Python object as long as the tensor itself, so marks
survive autograd.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Any

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.ops.hashing import pair_ids

NAME = "_fullgraph_mark"
VERSION = "_fullgraph_version"  # the tensor's version when it was marked Even


class Space:
    """A set of rows that is spread over the ranks: the nodes, the edges, or a selection of them."""

    def __init__(
        self, kind: str, size: int, *, ids: Callable[[], Tensor], targets: Callable[[], Tensor],
        edge_ids: Callable[[], Tensor], total: int | None = None, whole: bool = False,
        ends: tuple["Space", "Space"] | None = None,
    ) -> None:  # fmt: skip
        """kind: "nodes" or "edges". size: rows on this rank. total: rows on all ranks, if known.

        ids: a number for each row that no other row of the graph has; dropout draws by it. targets: the target of each
        edge; for a node, the node itself. edge_ids: the ids of edges; for a node, of its self loop. whole: True for all
        nodes or all edges of the graph, as the model received them. ends: of edges, the nodes that their sources and
        targets belong to; None: edges of nodes that are not known.
        """
        self.kind, self.size, self.total, self.whole = kind, size, total, whole
        self._ids, self._targets, self._edge_ids = ids, targets, edge_ids
        self._ends = ends

    @property
    def ends(self) -> "tuple[Space, Space] | None":
        """The nodes of the sources and of the targets; a node is both ends of its self loop."""
        return (self, self) if self._ends is None and self.kind == "nodes" else self._ends

    @cached_property
    def ids(self) -> Tensor:
        return self._ids()

    @cached_property
    def targets(self) -> Tensor:
        return self._targets()

    @cached_property
    def edge_ids(self) -> Tensor:
        return self._edge_ids()

    def picked(self, chosen: Tensor, size: int) -> "Space":
        """The rows that a mask or positions choose."""
        return Space(
            self.kind, size, ids=lambda: self.ids[chosen], targets=lambda: self.targets[chosen],
            edge_ids=lambda: self.edge_ids[chosen], ends=self.ends,
        )  # fmt: skip

    def is_like(self, other: "Space") -> bool:
        """Whether both hold the same rows in the same order; a node and its self loop count as the same row."""
        if self is other or self.size != other.size:
            return self is other
        if self.kind == other.kind:
            return torch.equal(self.ids, other.ids)
        return torch.equal(self.edge_ids, other.edge_ids)


def joined(spaces: list[Space]) -> Space:
    """The rows of several sets, one set after another; nodes among edges are self loops."""
    kind = "nodes" if all(space.kind == "nodes" for space in spaces) else "edges"

    def edge_ids() -> Tensor:
        """New ids for a set that is joined with itself, such as edges with their reversed copies."""
        again = [spaces[:place].count(space) for place, space in enumerate(spaces)]
        ids = [space.edge_ids for space in spaces]
        return torch.cat([pair_ids(x, x.new_tensor(k)) if k else x for x, k in zip(ids, again, strict=True)])

    return Space(
        kind, sum(space.size for space in spaces),
        ids=edge_ids if kind == "edges" else lambda: torch.cat([space.ids for space in spaces]),
        targets=lambda: torch.cat([space.targets for space in spaces]), edge_ids=edge_ids,
        ends=_common_ends(spaces),
    )  # fmt: skip


def _common_ends(spaces: list[Space]) -> tuple[Space, Space] | None:
    """The ends of all these edges and self loops; None if they differ."""
    found = {space.ends for space in spaces}
    return found.pop() if len(found) == 1 else None


class Sets:
    """The sets of rows that a model derived from one graph; an equal selection returns the same set."""

    KEPT = 4  # selections that are remembered for each set

    def __init__(self, nodes: Space, edges: Space, parts: Iterable[Space] = ()) -> None:
        """parts: of a typed graph, the nodes of each type and the edges of each relation."""
        self.nodes, self.edges = nodes, edges
        self.whole = (nodes, edges, *parts)
        self._nodes = frozenset(space for space in self.whole if space.kind == "nodes")
        self._picked: dict[Space, list[tuple[Tensor, Space]]] = {}
        self._joined: dict[tuple[Space, ...], Space] = {}

    def has_nodes(self, space: "Space | Ends | None") -> bool:
        """Whether these are all nodes, or all of a type: a rank has all edges to its own."""
        return space in self._nodes

    def picked(self, space: Space, chosen: Tensor, size: int) -> Space:
        """The rows that a mask or positions choose."""
        before = self._picked.setdefault(space, [])
        for known, found in before:
            if found.size == size and known.shape == chosen.shape and torch.equal(known, chosen):
                return found
        chosen = chosen.detach().clone()  # the model may write to its own tensor
        made = space.picked(chosen, size)
        for _, forgotten in before[: len(before) + 1 - self.KEPT]:
            self._forget(forgotten)
        self._picked[space] = [*before[-self.KEPT + 1 :], (chosen, made)]
        return made

    def joined(self, spaces: list[Space]) -> Space:
        key = tuple(spaces)
        if key not in self._joined:
            self._joined[key] = joined(spaces)
        return self._joined[key]

    def _forget(self, space: Space) -> None:
        """Drop a set, and all sets derived from it."""
        made = [found for _, found in self._picked.pop(space, [])]
        made += [self._joined.pop(key) for key in [key for key in self._joined if space in key]]
        for found in made:
            self._forget(found)


class Ends(Enum):
    """The rows that an index tensor points to, if they are not a set of rows of this rank."""

    SOURCES = "owned and halo nodes"  # positions among owned nodes, then halo nodes
    BOTH = "the two ends of edges"  # a tensor [2, e]: sources, then targets
    TURNED = "the two ends of turned edges"  # a tensor [2, e]: targets, then sources
    EITHER = "two ends of edges"  # a tensor [2, e]: any ends


@dataclass(frozen=True, slots=True)
class Rows:
    """Dimension `dim` has `each` consecutive entries for every row of `space`; the whole is repeated `blocks` times."""

    space: Space
    dim: int
    each: int = 1
    points: Space | Ends | None = None  # the values are positions in this space, and differ between ranks
    blocks: int = 1

    def at(self, dim: int) -> "Rows":
        return replace(self, dim=dim)

    @property
    def is_single(self) -> bool:
        """Whether the dimension has one entry for every row."""
        return self.each == 1 and self.blocks == 1

    def fits(self, other: "Rows") -> bool:
        """Whether both have entries for the same rows in the same order."""
        return self.each == other.each and self.blocks == other.blocks and self.space.is_like(other.space)

    def __reduce__(self) -> Any:
        """A saved tensor keeps only its values."""
        return _no_mark, ()

    def __deepcopy__(self, memo: Any) -> "Rows":
        return self

    @property
    def values(self) -> "Rows":
        """The same rows, with values that are not positions."""
        return self if self.points is None else replace(self, points=None)


@dataclass(frozen=True, slots=True)
class Even:
    """Equal numbers along each of `dims`; `zero`: all numbers are zero."""

    dims: tuple[int, ...]
    zero: bool = False


class Plain(Enum):
    """Marks without a value."""

    PARTIAL = "a share of a sum"
    SAME = "the same on every rank"


PARTIAL, SAME = Plain.PARTIAL, Plain.SAME
Mark = Rows | Even | Plain


def _no_mark() -> None:
    return None


def mark(x: Tensor, what: Mark | None) -> Tensor:
    setattr(x, NAME, what)
    if type(what) is Even:
        setattr(x, VERSION, _version(x))
    return x


def current(x: Any) -> Mark | None:
    """The mark of a tensor, SAME included. A tensor written to through a view is no longer Even."""
    what: Mark | None = getattr(x, NAME, None)
    if type(what) is Even and getattr(x, VERSION, 0) != _version(x):
        setattr(x, NAME, SAME)
        return SAME
    return what


def mark_of(x: Any) -> Mark | None:
    """The mark of a tensor; None if the tensor is equal on every rank."""
    what = current(x)
    return None if what is SAME else what


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def rows_of(x: Any) -> Rows | None:
    what = getattr(x, NAME, None)
    return what if type(what) is Rows else None


def moved(before: tuple[int, ...], after: tuple[int, ...], rows: Rows) -> Rows | None:
    """The mark after a view from one shape to another; None if the view would split a row."""
    pre, post = prod(before[: rows.dim]) * rows.blocks, prod(before[rows.dim + 1 :]) * rows.each
    size = before[rows.dim] // (rows.blocks * rows.each)
    for dim, width in enumerate(after):
        outer, inner = prod(after[:dim]), prod(after[dim + 1 :])
        if outer and inner and not pre % outer and not post % inner:
            blocks, each = pre // outer, post // inner
            if blocks and each and width == blocks * size * each:
                return replace(rows, dim=dim, each=each, blocks=blocks)
    return None
