"""Chunks of a pipeline, and the rows that a stage holds of all nodes: fresh or historical, and their gradients.

With live rows, the rows of a chunk are sorted by their distance to a training node. So a layer computes the first rows
of a chunk, as in a partitioned graph (holding/live.py). A historical row is read in place of the fresh one. So
snapshots need no other rows; and the gradients of other rows are zero, historical or not.

Legend: N nodes, w of them this way's own; n rows of the chunk, t of them that a layer computes, h of other ways' chunks
in the same slot; D features; W ways, K chunks a way, V levels: hops from a training node.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.exchange import Sides
from fullgraph.nn.view import IDENTITY, RowMap
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.ops.transpose import indptr_of
from fullgraph.placement.holding.live import Hops
from fullgraph.plan import HaloRoute


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbering:
    """Nodes numbered by way, then by chunk, then by level."""

    number_n: Tensor  # numbers of this rank's rows
    starts: Tensor  # [W, K + 1] where each way's chunks begin
    near: Tensor  # [W, K, V] rows of a chunk up to this level
    hops: Hops  # per layer; None: all rows

    @property
    def trimmed(self) -> list[int]:
        """The layers that do not compute all rows."""
        return [layer for layer, hop in enumerate(self.hops) if hop is not None]

    def computed(self, layer: int | None) -> Tensor:
        """The number of rows that a layer computes [W, K]; None or a negative layer: all rows."""
        hop = None if layer is None or layer < 0 else self.hops[layer]
        return self.near[:, :, -1 if hop is None else hop]

    def is_computed(self, way: int, layer: int | None) -> Tensor:
        """Mask [w] of the rows of a way that a layer computes."""
        starts = self.starts[way]
        sizes = starts.diff()
        within = torch.arange(int(sizes.sum())) - torch.repeat_interleave(starts[:-1] - starts[0], sizes)
        return within < torch.repeat_interleave(self.computed(layer)[way], sizes)


def rows_kept(matrix: Adjacency, kept_R: Tensor) -> Adjacency:
    """The same matrix with all other rows empty."""
    counts = matrix.structure.indptr.diff()
    arcs = torch.repeat_interleave(kept_R, counts)
    indptr = indptr_of(counts * kept_R)
    pattern = Structure(indptr, matrix.structure.indices[arcs], matrix.structure.num_cols)
    weight = None if matrix.weight is None else matrix.weight[arcs]
    return Adjacency(pattern, weight, matrix.row_scale, matrix.col_scale)


class Span(NamedTuple):
    first: int
    last: int

    @property
    def rows(self) -> slice:
        return slice(self.first, self.last)

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, eq=False, kw_only=True)
class Chunk:
    """Rows that pass a stage together, as a layer sees them. Nodes are numbered by way, then by chunk.

    A layer reads n rows of the chunk and computes the first t of them; t = n unless it leaves rows out.
    """

    index: int
    span: Span  # the n rows in the numbering of all N
    local: Span  # the t rows in the numbering of the way
    ids: Tensor  # [n] global ids
    halo: Tensor  # [h] numbers of the rows that this way reads of other ways' chunks in the same slot
    halo_ids: Tensor  # [h]
    route: HaloRoute  # the route of these rows
    forward: Adjacency  # [t, N]
    backward: Adjacency  # [n, w], and
    backward_halo: Adjacency  # [h, w], rows of the transpose
    arcs: Structure  # [t, N] for attention
    grades: Sides | None  # None unless a wire needs them

    @cached_property
    def columns(self) -> Tensor:
        """Numbers, ascending, of all rows that attention reads, with the chunk's own rows and its halo."""
        own = torch.arange(*self.span, device=self.halo.device)
        columns: Tensor = torch.cat([own, self.halo, self.arcs.indices.long()]).unique()
        return columns

    @cached_property
    def compact(self) -> Structure:
        """The arcs from `columns`."""
        return Structure(self.arcs.indptr, self.position(self.arcs.indices.long()), len(self.columns))

    @cached_property
    def own(self) -> slice:
        """The chunk's own rows among `columns`. It is kept, because computing it waits for the GPU."""
        first = int((self.columns < self.span.first).sum())
        return slice(first, first + len(self.span))

    def position(self, numbers: Tensor) -> Tensor:
        return torch.searchsorted(self.columns, numbers)


class History(NamedTuple):
    """How rows of later chunks are read (from snapshots), and which gradients flow to such rows."""

    freeze: int = 23  # steps between two snapshots
    late: bool = False  # the first one after step freeze - 1, as in the authors' code; else after step 0
    dropped: bool = False  # rows after that step's dropout, as in the authors' code; else each step draws its own
    gradients: str = "double"  # "none"; those of the "last" step; or "double": none, but fresh ones count twice

    def snaps(self, step: int) -> bool:
        """Whether this step takes a snapshot."""
        return (step + self.late) % self.freeze == 0

    @property
    def weight(self) -> float:
        """The weight of gradients that flow from chunk to chunk."""
        return 2.0 if self.gradients == "double" else 1.0


class Store:
    """One layer's input on a stage, for all N nodes: the rows that its product reads, and the way's gradients.

    The rows are the last snapshot with this step's dropout, overwritten chunk by chunk.
    """

    def __init__(self, nodes: int, way: int, like: Tensor, *, history: bool) -> None:
        self.rows = like.new_zeros(nodes, like.shape[1])
        # Rows after the activation and before dropout, as they cross; or after dropout, if `History.dropped`.
        self.history = torch.zeros_like(self.rows) if history else None
        # Gradients of the products; if not computed yet in this step, zero or the last step's.
        self.grads = like.new_zeros(way, like.shape[1])
        self.step = -1

    @cached_property
    def returned(self) -> Tensor:
        """Gradients of the rows from chunks whose backward pass is done; attention needs them."""
        return torch.zeros_like(self.rows)

    def open(self, step: int, row_map: RowMap, ids: Tensor, history: History) -> None:
        """Begin a step, at its first chunk."""
        if self.step != step:
            self.step = step
            if self.history is not None:
                today = IDENTITY if history.dropped else row_map.after_activation()
                self.rows.copy_(today.dense(self.history, ids))
            if history.gradients != "last":
                self.grads.zero_()
            if "returned" in self.__dict__:
                self.returned.zero_()


class Mix(torch.autograd.Function):
    """z = A_c X,  where X holds the chunk's current rows, and fresh or historical rows of all other chunks.

    Backward passes run in reverse order of chunks. So a row's gradient is a row of A^T times the gradients of all
    products computed after it, which are the products that read it fresh. Historical rows get no gradient, unless the
    gradients of the other products are kept from the last step. Each product's gradient counts `weight` times for
    earlier chunks and once for its own chunk: a message between chunks is fresh half of the time.
    """

    @staticmethod
    def forward(ctx, own: Tensor, halo: Tensor, store: Store, chunk: Chunk, weight: float):  # type: ignore[no-untyped-def]
        _write(store, chunk, own, halo)
        ctx.store, ctx.chunk, ctx.weight = store, chunk, weight
        return spmm(chunk.forward, store.rows)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        store, chunk = ctx.store, ctx.chunk
        mine = store.grads[chunk.local.rows]
        mine.copy_(grad)
        own, halo = spmm(chunk.backward, store.grads), spmm(chunk.backward_halo, store.grads)
        mine.mul_(ctx.weight)
        return own, halo, None, None, None


class Gather(torch.autograd.Function):
    """The rows of X that attention reads; gradients as in `Mix`, but returned row by row."""

    @staticmethod
    def forward(ctx, own: Tensor, halo: Tensor, store: Store, chunk: Chunk, weight: float):  # type: ignore[no-untyped-def]
        _write(store, chunk, own, halo)
        ctx.store, ctx.chunk, ctx.weight = store, chunk, weight
        return store.rows[chunk.columns]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        store, chunk = ctx.store, ctx.chunk
        halo = chunk.position(chunk.halo)
        grads = (
            grad[chunk.own] + ctx.weight * store.returned[chunk.span.rows],
            grad[halo] + ctx.weight * store.returned[chunk.halo],
        )
        store.returned.index_add_(0, chunk.columns, grad)
        return *grads, None, None, None


def _write(store: Store, chunk: Chunk, own: Tensor, halo: Tensor) -> None:
    store.rows[chunk.span.rows] = own
    store.rows[chunk.halo] = halo
