"""Chunks of a pipeline, and the rows that a stage holds of all nodes: fresh or historical, and their gradients.

Where layers leave rows out, the rows of a chunk are in the order of their distance to a training node. So what a layer
computes of a chunk are its first rows, as where rows have a halo (holding/live.py). A historical row is read where the
fresh one would be, so snapshots need no other rows; and the gradients of other rows are zero, historical or not.

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
from fullgraph.placement.holding.live import Hops
from fullgraph.plan import HaloRoute


@dataclass(frozen=True, eq=False, kw_only=True)
class Numbering:
    """Nodes numbered by way, then by chunk, then by level."""

    number_n: Tensor  # of this rank's rows
    starts: Tensor  # [W, K + 1] where each way's chunks begin
    near: Tensor  # [W, K, V] rows of a chunk that are so near, or nearer
    hops: Hops  # by layer; None: it computes all rows

    @property
    def trimmed(self) -> list[int]:
        """The layers that do not compute all rows."""
        return [layer for layer, hop in enumerate(self.hops) if hop is not None]

    def computed(self, layer: int | None) -> Tensor:
        """How many rows a layer computes [W, K]; all of them are computed by no layer (None), and before the first."""
        hop = None if layer is None or layer < 0 else self.hops[layer]
        return self.near[:, :, -1 if hop is None else hop]

    def is_computed(self, way: int, layer: int | None) -> Tensor:
        """Which rows of a way a layer computes, [w]."""
        starts = self.starts[way]
        sizes = starts.diff()
        within = torch.arange(int(sizes.sum())) - torch.repeat_interleave(starts[:-1] - starts[0], sizes)
        return within < torch.repeat_interleave(self.computed(layer)[way], sizes)


def rows_kept(matrix: Adjacency, kept_R: Tensor) -> Adjacency:
    """The matrix with the other rows empty."""
    counts = matrix.structure.indptr.diff()
    arcs = torch.repeat_interleave(kept_R, counts)
    indptr = torch.nn.functional.pad((counts * kept_R).cumsum(0), (1, 0))
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
    """Rows that go through a stage together, as a layer sees them. Nodes are numbered by way, then by chunk.

    A layer reads n rows of the chunk and computes the first t of them, which are all n unless it leaves rows out.
    """

    index: int
    span: Span  # the n rows in the numbering of all N
    local: Span  # the t rows in the numbering of the way
    ids: Tensor  # [n] global ids
    halo: Tensor  # [h] numbers of the rows that this way reads of other ways' chunks in the same slot
    halo_ids: Tensor  # [h]
    route: HaloRoute  # brings them
    forward: Adjacency  # [t, N]
    backward: Adjacency  # [n, w], and
    backward_halo: Adjacency  # [h, w], rows of the transpose
    arcs: Structure  # [t, N], for attention
    grades: Sides | None  # if a wire asks for them

    @cached_property
    def columns(self) -> Tensor:
        """Numbers of all rows that attention reads, the chunk's own and its halo among them, ascending."""
        own = torch.arange(*self.span, device=self.halo.device)
        columns: Tensor = torch.cat([own, self.halo, self.arcs.indices.long()]).unique()
        return columns

    @cached_property
    def compact(self) -> Structure:
        """The arcs from `columns`."""
        return Structure(self.arcs.indptr, self.position(self.arcs.indices.long()), len(self.columns))

    @cached_property
    def own(self) -> slice:
        """The chunk's own rows among `columns`; kept, for a GPU has to be waited for to know it."""
        first = int((self.columns < self.span.first).sum())
        return slice(first, first + len(self.span))

    def position(self, numbers: Tensor) -> Tensor:
        return torch.searchsorted(self.columns, numbers)


class History(NamedTuple):
    """What is read of chunks to come, and what gradients flow to chunks that were read so."""

    freeze: int = 23  # steps between two snapshots
    late: bool = False  # the first after step freeze - 1, as the authors' code has it; else after step 0
    dropped: bool = False  # rows as dropout left them then, as in the authors' code; else each step drops anew
    gradients: str = "double"  # "none"; "last" step's; or "double": none, and fresh ones count twice

    def snaps(self, step: int) -> bool:
        """Whether a snapshot is taken in this step."""
        return (step + self.late) % self.freeze == 0

    @property
    def weight(self) -> float:
        """Of gradients that cross from chunk to chunk."""
        return 2.0 if self.gradients == "double" else 1.0


class Store:
    """What a stage holds of one layer's input, for all N nodes: the rows its product reads, and the way's gradients.

    The rows are last time's snapshot, with today's dropout, overwritten chunk by chunk.
    """

    def __init__(self, nodes: int, way: int, like: Tensor, *, history: bool) -> None:
        self.rows = like.new_zeros(nodes, like.shape[1])
        # Activated, before dropout: as rows cross a wire. Or after it, if the history is to be so.
        self.history = torch.zeros_like(self.rows) if history else None
        # Of the products; where not computed yet this step, zero or the last step's.
        self.grads = like.new_zeros(way, like.shape[1])
        self.step = -1

    @cached_property
    def returned(self) -> Tensor:
        """Gradients of the rows themselves, from chunks already walked back; attention needs them."""
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
    """z = A_c X,  where X holds the chunk's rows as of now, and whatever else is fresh or historical.

    Chunks are walked back in reverse order. So a row's gradient is a row of A^T times the gradients of all products
    computed since, which are those that read it fresh: nothing flows to historical rows, unless the gradients of the
    other products are kept from the last step. Each product's gradient counts `weight` times for the chunks before it,
    once for its own: a message between chunks is fresh half the time.
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
    """The rows of X that attention reads; gradients as above, but handed back row by row."""

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
