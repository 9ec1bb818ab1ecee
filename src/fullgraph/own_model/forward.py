"""One forward pass of a user's model: exchanges, random draws and sums over ranks, all in order.

Calls are numbered, so that every rank gives the same call the same name; channels, sums and draws use this name.

Legend: n owned rows, h halo rows, e arcs, D features.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from fullgraph.cached import cached_property
from fullgraph.errors import InputError
from fullgraph.nn.layer_plan import LayerPlan, LayerShape
from fullgraph.ops import act_dropout, dropout_key, spmm
from fullgraph.own_model.by_source import reduced
from fullgraph.own_model.constants import Constant
from fullgraph.own_model.live import LiveRows
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.rows.count import Count
from fullgraph.own_model.rows.guard import Guard
from fullgraph.own_model.rows.place import in_users_code, refuse, refused
from fullgraph.own_model.rows.spaces import Rows, Space, mark, rows_of
from fullgraph.own_model.rows.values import is_even
from fullgraph.placement.holding.adjacency import Matrices
from fullgraph.plan import Route
from fullgraph.transport import Transport


class NotInChunks(Exception):
    """A layer's messages to some rows depend on the other rows."""


class Chunk(Protocol):
    """Some rows of a layer."""

    def total(self, space: Space) -> int:
        """The number of rows of all ranks in the set that these rows belong to."""


running: ContextVar["Forward | None"] = ContextVar("running", default=None)  # this thread's pass


@dataclass(slots=True)
class Counts:
    """The progress of a forward pass."""

    layers: int = 0  # message-passing layers entered
    inside: int = 0  # of these, layers not left yet
    group: int | None = None  # of the newest layer, if it belongs to one
    crossings: int = 0  # exchanges of the newest layer
    constants: int = 0  # exchanges of rows without a gradient
    turned: int = 0  # exchanges for messages against the edges
    draws: int = 0  # dropout calls
    shared: int = 0  # values received from other ranks
    reads: int = 0  # readings of neighbours' rows
    beside: frozenset[int] = frozenset()  # the newest layers, if none of them reads the output of another
    stage: int = 0  # readings before the newest layer, and before those beside it
    others: int = 0  # readings when the newest layer began, those of layers beside it included
    before_sum: int = 0  # of these, readings before the last sum over rows


class Sent:
    """Rows that peers read, sent once for all layers that read them."""

    def __init__(self, x: Tensor, rows: Tensor, dim: int, own_nD: Tensor, halo: Callable[[], Tensor]) -> None:
        """x: held, so that no other tensor gets its address. rows: x with the rows first, in place of `dim`."""
        self.x, self.own = x, own_nD
        self._rows, self._dim, self._halo = rows, dim, halo

    @cached_property
    def halo(self) -> Tensor:
        """The halo rows; waits for them."""
        return self._halo()

    @cached_property
    def every(self) -> Tensor:
        """Owned, then halo rows, in the dimension of x."""
        every = torch.cat([self.own, self.halo]).view(-1, *self._rows.shape[1:])
        return every.movedim(0, self._dim) if self._dim else every


class Known(Sent):
    """The features, which cross once in a run."""

    def __init__(self, x: Tensor, view: PygView) -> None:
        super().__init__(x, x, 0, x, lambda: self.every[view.num_owned :])
        self._view = view

    @cached_property
    def every(self) -> Tensor:
        return self._view.known_sources


class Forward:
    """The state of one forward pass over a rank's rows."""

    def __init__(self, view: PygView, *, seed: int, guard: Guard | None = None, draws: bool = True) -> None:
        """guard: knows the model's calls. draws: False disables dropout, for the self-check."""
        self.view, self.seed, self.draws = view, seed, draws
        self.guard = guard or Guard()
        self.sets = view.sets
        self.counts = Counts()
        self.trace = self.guard.trace(view, torch.is_grad_enabled())
        self.calls = 0  # calls of torch functions that were followed in this pass
        self.trusted = 0  # running calls whose operations are not followed: ours, and PyG's aggregations
        # by number of nodes that a layer of PyG's received: the nodes; None: nodes of several types
        self.gave_nodes: dict[int, Space | None] = {}
        # of the current layer or group: rows that peers read, and rows of parts of the graph
        self._sent: dict[tuple[int, int, int, str], Sent] = {}
        self._read: set[tuple[int, int, int, str]] = set()  # of the rows that were sent, those that the layer has read
        self._picked: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._kept: dict[int, Tensor] = {}  # values that a checkpointed part received
        self.keeping = self.replaying = False
        self.room: Callable[[], int] | None = None  # bytes for the messages of a layer; None: no limit
        self.chunk: Chunk | None = None  # rows of a layer that are computed separately
        self.live: LiveRows | None = None  # the rows that layers compute; None: all rows

    # Rows, and their numbers

    @contextmanager
    def trust(self) -> Iterator[None]:
        """Enclose calls that are known to be correct: their operations are not followed, their results not marked."""
        self.trusted += 1
        try:
            yield
        finally:
            self.trusted -= 1

    def at(self, edges: Space) -> PygView:
        """The view whose owned and halo rows the sources of these edges are among."""
        if edges.ends is None:
            refuse("edges of different relations are joined; use each relation by itself")
        return self.view.at(edges.ends[0])

    def as_rows(self, x: Tensor, rows: Rows | None) -> Tensor:
        return mark(x, rows)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Enclose our own code: torch's functions have their usual meaning there, and are not followed."""
        with self.trust(), torch._C.DisableTorchFunction():
            yield

    def as_nodes(self, x: Tensor) -> Tensor:
        return mark(x, self.view.node_rows)

    def count(self, space: Space, each: int = 1) -> Count:
        return Count.of(space, self.total, partial(self.gave, space), each)

    def total(self, space: Space) -> int:
        """The number of rows of a set on all ranks."""
        if self.chunk is not None:
            return self.chunk.total(space)
        if space.total is not None:
            return space.total
        return int(self.reduce(torch.tensor([space.size])))

    def gave(self, space: Space, size: int) -> None:
        """Record that a PyG layer received this rank's number of rows as a plain number, to create tensors of that
        size.
        """
        if self.guard.checks and in_users_code():
            refuse(
                "this makes a plain number of the rows of one rank; use x.size(0) as it is, which counts those of all"
                " ranks in computations"
            )
        if space.kind == "nodes" and size == space.size:
            self.gave_nodes[size] = space if self.gave_nodes.get(size, space) is space else None

    @property
    def transport(self) -> Transport:
        return self.view.transport

    def last_position(self, rows: Rows, largest: bool) -> Tensor:
        """PyG counts nodes as edge_index.max() + 1; here that is the number of owned nodes."""
        if self.guard.checks and in_users_code():
            refuse("edge_index.max() is the largest position on one rank; count nodes with x.size(0)")
        source, target = rows.space.ends or (None, None)
        if source is None or target is None or (source is not target and not isinstance(rows.points, Space)):
            refuse("edge_index.max() of a relation is asked for; count nodes with x.size(0)")
        points = rows.points if isinstance(rows.points, Space) else source
        return torch.tensor(points.size - 1 if largest else 0)

    @contextmanager
    def over(self, part: PygView) -> Iterator[None]:
        """While the block runs, a part of the rows and edges stands for all of them."""
        whole, self.view, self.sets = self.view, part, part.sets
        try:
            yield
        finally:
            self.view, self.sets = whole, whole.sets

    # Layers

    def enter(self, group: int | None = None, beside: int | None = None) -> None:
        """Begin a message-passing layer. Layers of a group that follow one another have one number and share rows.

        beside: the layer's number, if no layer of the group reads the output of another.
        """
        counts = self.counts
        is_new = group is None or group != counts.group
        if is_new:
            counts.layers, counts.crossings, counts.group = counts.layers + 1, 0, group
        if not counts.inside and (is_new or self.keeping or self.replaying):
            self._sent, self._picked = {}, {}
        if not counts.inside:
            if is_new or beside is None or beside in counts.beside:
                counts.stage, counts.beside = counts.reads, frozenset()
            counts.beside |= {beside} if beside is not None else frozenset()
            counts.others, counts.reads, self._read = counts.reads, counts.stage, set()
        counts.inside += 1

    def plan(self, x: Tensor, shape: LayerShape) -> LayerPlan:
        """The current layer's plan: what it sends of x."""
        return self.view.plan(x, self.counts.layers - 1, shape)

    def leave(self) -> None:
        counts = self.counts
        counts.inside -= 1
        if not counts.inside:
            counts.reads = max(counts.reads, counts.others)
        if not self.counts.inside and (self.counts.group is None or self.keeping or self.replaying):
            self._sent, self._picked = {}, {}

    def keep(self, x: Tensor, part: PygView, make: Callable[[], Tensor]) -> Tensor:
        """The rows of x that a part of the graph has; layers of a group that read the same rows share them."""
        key = id(x), x._version, id(part)
        if key not in self._picked:
            self._picked[key] = x, make()
        return self._picked[key][1]

    # Rows of neighbours

    def lift(self, x: Tensor, dim: int, source: Tensor) -> Tensor:
        """x[source] along a dimension: one row per edge."""
        by, rows, dim = rows_of(source), rows_of(x), dim % x.dim()
        assert by is not None
        every = self.sources(x, dim, self.at(by.space))
        if source.dim() == 1:
            out = every.index_select(dim, source)
        else:
            out = every.movedim(dim, 0)[source.detach()]
            if dim:
                refuse("rows are read by an index of several dimensions; index the rows with x[source]")
        return mark(out, Rows(by.space, dim + by.dim, points=rows.points if rows is not None else None))

    def sources(self, x: Tensor, dim: int = 0, view: PygView | None = None) -> Tensor:
        """Owned, then halo rows; rows that a layer reads twice cross once. view: of the nodes, if not of all."""
        sent = self._send(x, dim, self.view.sources if view is None else view)
        with torch._C.DisableTorchFunction():
            return sent.every

    def _send(self, x: Tensor, dim: int, view: PygView) -> "Sent":
        """Send the rows that peers read, unless a layer of this group has sent them."""
        key = id(x), x._version, dim, view.kind
        if key not in self._sent:
            self._not_in_chunk("rows of neighbours")
        if key not in self._read or not self.counts.inside:
            self._read.add(key)
            self.counts.reads += 1
        if key in self._sent:
            return self._sent[key]
        self._check_owned(x, dim, view)
        self._guard()
        with torch._C.DisableTorchFunction():  # our own code, whose calls need no checks
            rows = x.movedim(dim, 0) if dim else x
            if rows is view.features:
                sent: Sent = Known(x, view)
            else:
                sent = Sent(x, rows, dim, *self._post(rows.reshape(view.num_owned, prod(rows.shape[1:])), view))
        if self.counts.inside:
            self._sent[key] = sent
        return sent

    def _check_owned(self, x: Tensor, dim: int, view: PygView) -> None:
        """Refuse a table of neighbours that is not made of rows of nodes."""
        n = view.num_owned
        with torch._C.DisableTorchFunction():
            size = x.shape[dim]
        if size != n:
            refuse(
                f"a layer reads its neighbours in a tensor of {size} rows where this rank owns {n} nodes; "
                "give it a row for every node, made from x or from a weight with a row per node"
            )
        if not self.trusted and not self.is_owned(x, dim, view) and not is_even(x, dim):
            refuse("a layer reads its neighbours in a table that is not made of rows of nodes; make it from x")

    def is_owned(self, x: Tensor, dim: int, view: PygView | None = None) -> bool:
        """Whether x has a row for each owned node along a dimension; always True if checks are off."""
        rows = rows_of(x)
        nodes = self.sets.nodes if view is None or view is self.view else view.nodes
        owned = rows is not None and rows.dim == dim and rows.space.is_like(nodes)
        return owned or not self.guard.checks

    def aggregate(self, x_nD: Tensor, aggregation: str, *, weighted: bool = False) -> Tensor:
        """A @ x over all in-neighbours, with our own kernel."""
        view = self.view
        with torch._C.DisableTorchFunction():
            matrices = None if x_nD is view.features else view.matrices(aggregation, weighted=weighted)
        if matrices is not None:
            return self.as_nodes(self.product(x_nD, matrices))
        self._send(x_nD, 0, view.sources)  # known, so nothing crosses
        with torch._C.DisableTorchFunction():
            return self.as_nodes(view.known_aggregate(aggregation, weighted=weighted))

    def product(self, x_nD: Tensor, matrices: Matrices) -> Tensor:
        """M @ x over owned and halo rows."""
        sent = self._send(x_nD, 0, self.view.sources)
        with torch._C.DisableTorchFunction():
            inner = spmm(matrices.inner, sent.own)  # overlaps the exchange
            return spmm(matrices.outer, sent.halo, inner)

    def _post(self, x_nD: Tensor, view: PygView) -> tuple[Tensor, Callable[[], Tensor]]:
        """Send the rows that peers read; return x, and a function that waits for the halo rows."""
        name, layer, exact = self._numbered(x_nD)
        if self.replaying:
            return x_nD, lambda: self._shared(None)
        constant = view.constants.setdefault(name, Constant()) if exact and self.transport.size > 1 else None
        known = None if constant is None else constant.known(x_nD, view.reduce)
        if known is not None:
            return x_nD, lambda: self._shared(known)
        channel = view.crossing(name, layer, exact=exact)
        own_nD, token = channel.begin(x_nD)

        def halo() -> Tensor:
            came = channel.end(token)
            if constant is not None:
                constant.keep(x_nD, came)
            return self._shared(came)

        return own_nD, halo

    def _numbered(self, rows: Tensor) -> tuple[str, int, bool]:
        """(name, layer, exact) of the next channel; rows without a gradient, inputs or degrees, cross exactly."""
        counts = self.counts
        if not counts.inside:
            counts.layers, counts.crossings, counts.group = counts.layers + 1, 0, None
        layer = counts.layers - 1
        if not rows.requires_grad and not self.replaying:
            counts.constants += 1
            return f"constant{counts.constants}", layer, True
        counts.crossings += 1
        extra = f"/{counts.crossings - 1}" if counts.crossings > 1 else ""
        return f"layer{layer}{extra}", layer, False

    # Messages against the edges

    def by_source(
        self, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str = "sum", include_self: bool = True
    ) -> Tensor:
        """Rows of edges, reduced by the edges' sources."""
        self._not_in_chunk("rows by the sources of edges")
        self.counts.before_sum = self.counts.reads
        return reduced(self, x, dim, index, source, reduce, include_self)

    def cross_exactly(self, x: Tensor, route: Route, view: PygView) -> Tensor:
        """y = R x, between owned and halo rows of a view."""
        self._guard()
        self.counts.turned += 1
        if self.replaying:
            return self._shared(None)
        # A pass without gradients has fewer exchanges, so a number alone may stand for another route.
        channel = view.exact_crossing(f"turned{self.counts.turned} {type(route).__name__}", route)
        return self._shared(channel.end(channel.begin(x)[1]))

    def _not_in_chunk(self, what: str) -> None:
        if self.chunk is not None:
            error = NotInChunks(f"its messages read {what}")
            if (before := refused.get()) is not None:
                before.append(error)
            raise error

    # Sums over ranks

    def reduce(self, x: Tensor) -> Tensor:
        """The differentiable sum of x over ranks."""
        self._not_in_chunk("a sum over all rows")
        self.counts.before_sum = self.counts.reads
        self._guard()
        return self._shared(None if self.replaying else self.view.reduce(x))

    @torch.no_grad()
    def gather(self, x: Tensor) -> Tensor:
        """The tensors of all ranks [ranks, ...]; no gradient flows back."""
        each = x.new_zeros(self.transport.size, *x.shape)
        each[self.transport.rank] = x
        return self.reduce(each)

    def _shared(self, value: Tensor | None) -> Tensor:
        """A value from other ranks; a recomputed part gets the value of its first run."""
        number = self.counts.shared
        self.counts.shared += 1
        if value is None:
            return self._kept[number]
        if self.keeping:
            # autograd saves tensors depending on it
            self._kept[number] = value.detach().requires_grad_(value.requires_grad)
        return value

    # Random draws

    def draw_key(self) -> int:
        """The key of the next draws in this pass."""
        self._guard()
        self.counts.draws += 1
        return dropout_key(self.seed, self.view.step, self.counts.draws)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """keep(id, column) x / (1 - p), by the global id of each node or arc."""
        key = self.draw_key()
        if not self.draws:
            return x
        self.view.clock.dropped = True
        if p == 1:
            return x * 0
        return self.by_rows(x, lambda flat, ids: act_dropout(flat, ids, key=key, p=p, act="none"))

    def by_rows(self, x: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """function(values [rows, entries of a row], ids of the rows), in the shape of x."""
        rows = rows_of(x)
        if rows is not None and (rows.dim or rows.blocks > 1):
            parted = x.unflatten(rows.dim, (rows.blocks, rows.space.size * rows.each)).movedim(rows.dim + 1, 0)
            out = self._by_first(parted, rows, function).movedim(0, rows.dim + 1)
            return mark(out.reshape(x.shape), rows)
        out = self._by_first(x, rows, function)
        return out if rows is None else mark(out, rows)

    def _by_first(self, x: Tensor, rows: Rows | None, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        size = rows.space.size if rows is not None else len(x) if x.dim() else 1
        flat = x.reshape(size, x.numel() // size if size else prod(x.shape[1:]))
        return function(flat, self._ids(flat, rows)).view(x.shape)

    def _ids(self, flat: Tensor, rows: Rows | None) -> Tensor:
        """Ids of rows; a tensor that is equal on every rank uses positions instead."""
        if rows is not None:
            return rows.space.ids
        if self.trusted and len(flat) == self.sets.nodes.size:
            return self.sets.nodes.ids
        return torch.arange(len(flat), device=flat.device)

    # Parts that the backward pass recomputes

    def _guard(self) -> None:
        """Refuse a part of the model that would be recomputed with another context than ours."""
        hooks = None if self.keeping or self.replaying else torch._C._autograd._top_saved_tensors_default_hooks(False)
        if hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint":
            raise InputError(
                "a checkpointed part of the model reads neighbours, draws or normalises, and has a context_fn of its "
                "own; call checkpoint without it, or with context_fn=fg.checkpoint_context"
            )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Enclose the first run of a checkpointed part."""
        self.keeping = True
        try:
            yield
        finally:
            self.keeping = False

    @contextmanager
    def again(self, start: Counts) -> Iterator[None]:
        """Enclose the recomputation of that part: it gets the same numbers, and nothing crosses twice."""
        now, self.counts, self.replaying = self.counts, replace(start), True
        try:
            yield
        finally:
            self.counts, self.replaying = now, False
