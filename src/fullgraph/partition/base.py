"""The types that all partitioners share: the assignment, and the graph as a partitioner sees it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Protocol

import numpy as np
import scipy.sparse as sp

from fullgraph.data import Graph
from fullgraph.data.arrays import Array
from fullgraph.errors import InputError
from fullgraph.values import Range, Value

# Options of several partitioners.
Weight = Annotated[float, Range(0, 1e9)]
Imbalance = Annotated[float, Range(0, 100, above=True)]
Threads = Annotated[int, Range(0, 4096)]
MOST_PARTS = 65535
MOST_SEED = 2**63 - 1
RUN_ARCS = 1 << 22


@dataclass(frozen=True, eq=False)
class Assignment:
    """The owner of every node, part[i] in 0..parts-1; a part may be empty.

    position[i], if given, is the node's position in the best order for computing rows.
    """

    part: Array  # int32 [N]
    parts: int
    method: str = "given"
    seed: int = 0
    position: Array | None = None  # int64 [N], a permutation

    def __post_init__(self) -> None:
        part = np.asarray(self.part)
        if self.parts < 1:
            raise InputError(f"{self.parts} parts: give at least one")
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise InputError(f"an assignment is one integer per node: got {part.dtype} {part.shape}")
        if part.size and not 0 <= int(part.min()) <= int(part.max()) < self.parts:
            raise InputError(f"an assignment names parts outside 0 to {self.parts - 1}: renumber them, or raise parts")
        if self.position is not None and not _is_order(np.asarray(self.position), part.size):
            raise InputError(f"an assignment's position has each number from 0 to {part.size - 1} once, or is None")
        view = part.astype(np.int32, copy=False).view()
        view.setflags(write=False)
        object.__setattr__(self, "part", view)


def _is_order(position: Array, count: int) -> bool:
    """Return whether a vector has each number below count once."""
    if position.shape != (count,) or position.dtype.kind not in "iu":
        return False
    if count and not 0 <= int(position.min()) <= int(position.max()) < count:
        return False
    found = np.zeros(count, bool)
    found[position] = True
    return bool(found.all())


class Partitioner(Protocol):
    """Decides which part owns each node. `fullgraph.partition.partition` calls it and records its name and seed."""

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment: ...


def needs_structure(partitioner: Partitioner) -> bool:
    """Whether a partitioner of the package copies all arcs in its own form; those that stream need memory for nodes."""
    return bool(getattr(partitioner, "needs_structure", False))


class Balanced(Value):
    """A partitioner that balances  sum of a + b * degree  over parts; `search` finds the parts where arcs matter.

    In a typed graph the sum of every node type is balanced.
    """

    # Fields of every such partitioner, the last ones: a (None: the mean degree) and b.
    node_weight: Weight | None
    degree_weight: Weight

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.node_weight == 0 and self.degree_weight == 0:
            raise InputError("node_weight and degree_weight are both zero: give one of them a weight")

    def assign(self, graph: Graph, parts: int, *, seed: int) -> Assignment:
        check_parts(graph, parts)
        if needs_no_search(graph, parts):
            return Assignment(blocks_of_ids(graph, parts), parts)
        part = self.search(graph, parts, seed)
        if len(graph.types.nodes) > 1:
            from fullgraph.partition.fennel import shared_by_type

            part = shared_by_type(graph, part, parts, self)
        return Assignment(part, parts)

    def search(self, graph: Graph, parts: int, seed: int) -> Array:
        """The part of every node, int32 [N]."""
        raise NotImplementedError

    def weights(self, graph: Graph, limit: int = 1 << 30) -> Array:
        """Whole numbers in proportion to the nodes' weights, with a total of at most `limit`."""
        return vertex_weight(graph, self.node_weight, self.degree_weight, limit)


def check_parts(graph: Graph, parts: int) -> None:
    """Require at least one part, at most one per node, and at most as many as a folder of shards may hold."""
    if parts < 1:
        raise InputError(f"{parts} parts: give at least one")
    if parts > graph.num_nodes:
        raise InputError(f"{parts} parts for {graph.num_nodes} nodes: ask for at most as many parts as there are nodes")
    if parts > MOST_PARTS:
        raise InputError(f"{parts} parts: give at most {MOST_PARTS}")


def check_seed(seed: int) -> None:
    if not 0 <= seed <= MOST_SEED:
        raise InputError(f"seed={seed}: at least 0 and at most {MOST_SEED}")


def undirected_csr(graph: Graph) -> tuple[Array, Array]:
    """Return a partitioner's graph: (indptr, indices) of the pattern of  A + A^T  without its diagonal.

    Duplicates count once. Index types are int32 if possible; rows are not sorted.
    """
    n = graph.num_nodes
    # Boolean entries add as "or": an 8-bit count would wrap to zero at 256 duplicates and lose the arc.
    pattern = sp.csr_array((np.ones(graph.num_arcs, dtype=np.bool_), graph.indices, graph.indptr), shape=(n, n))
    both = (pattern + pattern.T.tocsr()).tocsr()
    del pattern
    indptr, indices = both.indptr, both.indices
    del both
    row = np.repeat(np.arange(n, dtype=indices.dtype), np.diff(indptr))
    loops = np.flatnonzero(row == indices)
    if loops.size:
        before = np.zeros(n + 1, dtype=indptr.dtype)
        np.cumsum(np.bincount(row[loops], minlength=n), out=before[1:])
        indptr, indices = indptr - before, np.delete(indices, loops)
    return indptr, indices


def vertex_weight(graph: Graph, node_weight: float | None, degree_weight: float, limit: int) -> Array:
    """Return integer weights in proportion to  a + b * degree,  with a total of at most `limit`.

    degree counts the arcs into the node, which its owner will hold. a = None means the mean degree: nodes and arcs then
    have the same total weight, so that neither is balanced at the full cost of the other.
    """
    degree = np.diff(graph.indptr).astype(np.float64)
    a = max(1.0, float(degree.mean())) if node_weight is None else node_weight
    weight = a + degree_weight * degree
    mean = float(weight.mean())
    if mean <= 0:  # on a graph without arcs, if only b is set
        return np.ones(graph.num_nodes, dtype=np.int64)
    resolution = min(1000.0, limit / graph.num_nodes / 2)
    # A node without weight could pile up in one part with others.
    return np.maximum(1, np.rint(weight * (resolution / mean))).astype(np.int64)


def blocks_of_ids(graph: Graph, parts: int) -> Array:
    """Return equal blocks of consecutive ids, of each node type:  part[i] = floor(i * parts / N)."""
    return np.concatenate([even_blocks(high - low, parts) for low, high in type_ranges(graph)])


def type_ranges(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield (first id, last id + 1) of every node type; a homogeneous graph has one type."""
    yield from pairwise(graph.types.starts if graph.types else (0, graph.num_nodes))


def even_blocks(rows: int, blocks: int) -> Array:
    """Return the block of every row, in equal blocks of consecutive rows."""
    return (np.arange(rows, dtype=np.int64) * blocks // max(1, rows)).astype(np.int32)


def needs_no_search(graph: Graph, parts: int) -> bool:
    """Whether all balanced assignments are equally good: one part, or no arc between two different nodes."""
    return parts == 1 or not any(_has_neighbours(graph, *run) for run in row_runs(graph.indptr))


def _has_neighbours(graph: Graph, first: int, last: int) -> bool:
    """Whether any of the rows [first, last) has an arc from another node."""
    indptr = graph.indptr[first : last + 1]
    row = np.repeat(np.arange(first, last, dtype=graph.indices.dtype), np.diff(indptr))
    return bool((row != graph.indices[indptr[0] : indptr[-1]]).any())


def row_runs(indptr: Array) -> Iterator[tuple[int, int]]:
    """Split all rows into runs of consecutive rows with a few million arcs each; yield (first, last + 1)."""
    starts = np.searchsorted(indptr, np.arange(0, int(indptr[-1]), RUN_ARCS))
    return pairwise(np.unique([0, *starts.tolist(), len(indptr) - 1]).tolist())


@contextmanager
def quietly() -> Iterator[None]:
    """Silence METIS's own output when memory runs out; its error is enough."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def require(module: str, package: str = "fullgraph[partition]") -> Any:
    """Import an optional module, or raise one line that names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{module} is not installed: run `pip install {package}`, or choose another partitioner"
        ) from None
