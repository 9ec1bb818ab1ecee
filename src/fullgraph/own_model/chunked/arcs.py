"""A set of edges in the order of their targets, divided into chunks of whole rows.

Legend: n rows, m owned and halo rows, e edges; k edges and r rows of a chunk.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.ops import Adjacency, Structure, add_rows, spmm
from fullgraph.ops.transpose import INT32_MAX, indptr_of
from fullgraph.own_model.rows.spaces import Ends, Rows, Sets, Space, mark
from fullgraph.own_model.rows.trace import Trace


class ByTarget:
    """The edges of `edges`, sorted by target: edge k of this order is edge order[k] of the set.

    The sort is stable, so messages to one row keep their order.
    """

    def __init__(self, edges: Space, nodes: Space, target_e: Tensor) -> None:
        self.edges, self.nodes = edges, nodes
        is_sorted = bool((target_e[1:] >= target_e[:-1]).all())
        self.order = None if is_sorted else _narrow(torch.sort(target_e, stable=True).indices)
        counts = torch.bincount(target_e, minlength=nodes.size)
        self.indptr = indptr_of(counts).cpu().numpy()
        self._chunks: dict[int, list[Chunk]] = {}

    def cut(self, most_arcs: int) -> "list[Chunk]":
        """Chunks of at most `most_arcs` edges; a row with more is its own chunk. There is at least one chunk."""
        if most_arcs not in self._chunks:
            self._chunks[most_arcs] = [Chunk(self, low, high) for low, high in pairwise(self._borders(most_arcs))]
        return self._chunks[most_arcs]

    def _borders(self, most_arcs: int) -> Iterator[int]:
        indptr, low = self.indptr, 0
        yield 0
        while low < len(indptr) - 1:
            fits = int(np.searchsorted(indptr, indptr[low] + most_arcs, side="right")) - 1
            low = max(fits, low + 1)
            yield low
        if not low:
            yield 0  # an empty chunk: every rank must learn the layer's operations

    def sample(self, arcs: int) -> "list[Chunk]":
        """The first rows with edges, once as one chunk and once as two."""
        indptr = self.indptr
        low = int(np.searchsorted(indptr, 0, side="right")) - 1  # earlier rows have no edges
        low = min(max(low, 0), max(0, len(indptr) - 2))
        high = min(int(np.searchsorted(indptr, indptr[low] + arcs)), len(indptr) - 1)
        high = max(high, min(low + 2, len(indptr) - 1))
        middle = (low + high + 1) // 2
        return [Chunk(self, *rows) for rows in ((low, high), (low, middle), (middle, high))]

    def longest(self) -> int:
        """The largest number of edges of one row."""
        return int(np.diff(self.indptr).max(initial=0))


class Chunk:
    """The rows low..high-1 and all edges to them."""

    def __init__(self, by_target: ByTarget, low: int, high: int) -> None:
        self.by, self.low, self.high = by_target, low, high
        self.first, self.last = int(by_target.indptr[low]), int(by_target.indptr[high])
        nodes = self._nodes()
        self.sets, self.trace = Sets(nodes, self._edges(nodes)), Trace()
        self._sources: tuple[Tensor, Adjacency] | None = None

    @property
    def num_rows(self) -> int:
        return self.high - self.low

    @property
    def num_arcs(self) -> int:
        return self.last - self.first

    def _nodes(self) -> Space:
        nodes, low, high = self.by.nodes, self.low, self.high
        return Space(
            "nodes", high - low, ids=lambda: nodes.ids[low:high], edge_ids=lambda: nodes.edge_ids[low:high],
            targets=lambda: torch.arange(high - low, device=nodes.ids.device),
        )  # fmt: skip

    def _edges(self, nodes: Space) -> Space:
        edges = self.by.edges
        source, target = edges.ends or (self.by.nodes, self.by.nodes)

        def of(values_e: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return self.of_edges(values_e)

        return Space(
            "edges", self.num_arcs, ids=lambda: of(edges.ids), edge_ids=lambda: of(edges.edge_ids),
            targets=lambda: of(edges.targets) - self.low, ends=(nodes if source is target else source, nodes),
        )  # fmt: skip

    def forget(self) -> None:
        """Free what the sets have computed about their rows; it is recomputed on demand."""
        for space in (self.sets.nodes, self.sets.edges):
            for name in ("ids", "targets", "edge_ids"):
                vars(space).pop(name, None)

    # Rows and edges of a chunk, picked from whole tensors

    def of_edges(self, x: Tensor, dim: int = 0) -> Tensor:
        """The entries of the chunk's edges, in the order of their targets."""
        if self.by.order is None:
            return x.narrow(dim, self.first, self.num_arcs)
        return x.index_select(dim, self.by.order[self.first : self.last])

    def of_rows(self, x: Tensor, dim: int = 0) -> Tensor:
        return x.narrow(dim, self.low, self.num_rows)

    def set_edges(self, out: Tensor, part: Tensor, dim: int = 0) -> None:
        if self.by.order is None:
            out.narrow(dim, self.first, self.num_arcs).copy_(part)
        else:
            out.index_copy_(dim, self.by.order[self.first : self.last].long(), part)

    def set_rows(self, out: Tensor, part: Tensor, dim: int = 0) -> None:
        self.of_rows(out, dim).copy_(part)

    def ends(self, edge_index: Tensor) -> Tensor:
        """[2, k]: sources among owned and halo rows, targets among the chunk's rows."""
        source_k, target_k = self.of_edges(edge_index[0]), self.of_edges(edge_index[1]) - self.low
        return mark(torch.stack([source_k, target_k]), Rows(self.sets.edges, 1, points=Ends.BOTH))

    # Sums over the chunk's edges, always in the same order

    def add_by_source(self, out_mD: Tensor, values_kD: Tensor, edge_index: Tensor) -> None:
        """out[j] += the sum of values over the chunk's edges from j."""
        if self.num_arcs:
            rows_u, adjacency = self._by_source(edge_index)
            add_rows(out_mD, rows_u, spmm(adjacency, values_kD.contiguous()))

    def add_by_target(self, out_nD: Tensor, values_kD: Tensor) -> None:
        """out[i] += the sum of values over the edges to i."""
        if self.num_arcs:
            self.of_rows(out_nD).add_(spmm(self._by_row, values_kD.contiguous()))

    def _by_source(self, edge_index: Tensor) -> tuple[Tensor, Adjacency]:
        """The distinct sources of the chunk's edges, and the matrix that sums edge values by source."""
        if self._sources is None:
            source_k, order_k = self.of_edges(edge_index[0]).sort(stable=True)
            rows_u, counts_u = torch.unique_consecutive(source_k, return_counts=True)
            self._sources = rows_u, Adjacency(Structure(indptr_of(counts_u), order_k, self.num_arcs))
        return self._sources

    @cached_property
    def _by_row(self) -> Adjacency:
        indptr = torch.from_numpy(self.by.indptr[self.low : self.high + 1] - self.first)
        device = self.by.nodes.ids.device
        arcs = torch.arange(self.num_arcs, dtype=torch.int32, device=device)
        return Adjacency(Structure(indptr.to(device), arcs, self.num_arcs))


def _narrow(positions: Tensor) -> Tensor:
    return positions.to(torch.int32) if len(positions) <= INT32_MAX else positions
