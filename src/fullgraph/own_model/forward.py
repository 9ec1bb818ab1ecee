"""One forward pass of a user's model: what crosses, what is drawn, and what is summed over ranks, all in order.

Calls are numbered, so that every rank gives the same call the same name: channels, sums and draws depend on it.

Legend: n owned rows, h halo rows, e arcs, D features.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import act_dropout, dropout_key, spmm
from fullgraph.own_model.graph import RankGraph
from fullgraph.own_model.index import ArcIndex, arc_index

running: ContextVar["Forward | None"] = ContextVar("running", default=None)  # the pass that this thread is in


@dataclass(slots=True)
class Counts:
    """How far a forward pass has come."""

    layers: int = 0  # message-passing layers entered
    inside: int = 0  # of them, not left yet
    crossings: int = 0  # exchanges of the newest layer
    constants: int = 0  # exchanges of rows without a gradient
    draws: int = 0  # dropout calls
    shared: int = 0  # values that came from other ranks


class Forward:
    """The state of one forward pass over a rank's rows."""

    def __init__(self, graph: RankGraph, *, seed: int, draws: bool = True) -> None:
        """draws: False leaves all numbers in; the self-check compares with a model that drops nothing."""
        self.graph, self.seed, self.draws = graph, seed, draws
        self.counts = Counts()
        self.arc_ids = graph.arc_ids  # of the arcs that a layer works on
        self.on_arcs = False  # inside a layer's message, where rows are arcs
        self._with_grad, self._hooks = torch.is_grad_enabled(), _saved_tensor_hooks()
        self._fetched: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # of the layer that runs
        self._kept: dict[int, Tensor] = {}  # what a checkpointed part received
        self.keeping = self.replaying = False

    @property
    def arcs(self) -> ArcIndex:
        """The edge_index that the model is given."""
        return arc_index(self.graph.edge_index, self.graph.arc_ids, self, whole=True)

    # Layers

    def enter(self) -> int:
        """A message-passing layer begins; returns its number."""
        self.counts.layers += 1
        self.counts.inside += 1
        self.counts.crossings = 0
        return self.counts.layers - 1

    def leave(self) -> None:
        self.counts.inside -= 1
        if not self.counts.inside:
            self._fetched = {}
        self.arc_ids = self.graph.arc_ids

    # Rows of neighbours

    def lift(self, rows: Tensor, dim: int, source_e: Tensor, arc_ids: Tensor) -> Tensor:
        """rows[source] along a dimension, one row for every arc."""
        self.arc_ids = arc_ids
        if dim % rows.dim():
            return self.sources(rows.movedim(dim, 0)).index_select(0, source_e).movedim(0, dim)
        return self.sources(rows).index_select(0, source_e)

    def sources(self, rows: Tensor) -> Tensor:
        """Owned, then halo rows; rows that a layer lifts twice cross once."""
        before, fetched = self._fetched.get((id(rows), rows._version), (None, rows))
        if before is not None:
            return fetched
        fetched = self._crossed(rows)
        if self.counts.inside:
            self._fetched[id(rows), rows._version] = rows, fetched
        return fetched

    def _crossed(self, rows: Tensor) -> Tensor:
        graph, n = self.graph, self.graph.num_owned
        if rows.shape[0] != n:
            raise InputError(
                f"a layer reads its neighbours in a tensor of {rows.shape[0]} rows where this rank owns {n} nodes; "
                "give it a row for every node, made from x (an embedding of all nodes belongs into the graph's x)"
            )
        self._guard()
        if rows is graph.x:
            return graph.known_sources
        own_nD, halo = self._post(rows.reshape(n, prod(rows.shape[1:])))
        return torch.cat([own_nD, halo()]).view(-1, *rows.shape[1:])

    def aggregate(self, x_nD: Tensor, aggregation: str, *, weighted: bool = False) -> Tensor:
        """A @ x over all in-neighbours, by our own kernel; the product with owned rows hides the wire."""
        graph = self.graph
        self._guard()
        if x_nD is graph.x:
            return graph.known(aggregation, weighted=weighted)
        matrices = graph.matrices(aggregation, weighted=weighted)
        own_nD, halo = self._post(x_nD)
        inner = spmm(matrices.inner, own_nD)
        return spmm(matrices.outer, halo(), inner)

    def _post(self, x_nD: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """Send the rows that peers read; returns x, and a call that waits for the halo rows."""
        name, layer, exact = self._numbered(x_nD)
        if self.replaying:
            return x_nD, lambda: self._shared(None)
        channel = self.graph.channel(name, layer, exact=exact)
        own_nD, token = channel.begin(x_nD)
        return own_nD, lambda: self._shared(channel.end(token))

    def _numbered(self, rows: Tensor) -> tuple[str, int, bool]:
        """(name, layer, exact) of the next channel; rows without a gradient, inputs or degrees, cross exactly."""
        counts = self.counts
        if not counts.inside:
            counts.layers, counts.crossings = counts.layers + 1, 0
        layer = counts.layers - 1
        if not rows.requires_grad and not self.replaying:
            counts.constants += 1
            return f"constant{counts.constants}", layer, True
        counts.crossings += 1
        extra = f"/{counts.crossings - 1}" if counts.crossings > 1 else ""
        return f"layer{layer}{extra}", layer, False

    # Sums over ranks

    def reduce(self, x: Tensor) -> Tensor:
        """The differentiable sum of x over ranks."""
        self._guard()
        return self._shared(None if self.replaying else self.graph.channels.reduce(x))

    def _shared(self, value: Tensor | None) -> Tensor:
        """A value that came from other ranks; a part that is computed again is given what it got the first time."""
        number = self.counts.shared
        self.counts.shared += 1
        if value is None:
            return self._kept[number]
        if self.keeping:
            self._kept[number] = value.detach().requires_grad_(value.requires_grad)  # what is saved depends on it
        return value

    # Draws

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """keep(id, column) x / (1 - p), by the global id of each node or arc."""
        self._guard()
        self.counts.draws += 1
        if not self.draws:
            return x
        if p == 1:
            return x * 0
        key = dropout_key(self.seed, self.graph.step, self.counts.draws)
        flat = x.reshape(x.shape[0], prod(x.shape[1:])) if x.dim() else x.reshape(1, 1)
        return act_dropout(flat, self._ids(len(flat), x), key=key, p=p, act="none").view(x.shape)

    def _ids(self, rows: int, x: Tensor) -> Tensor:
        """Rows are nodes, or arcs; a tensor of neither is the same on every rank."""
        nodes, arcs = self.graph.ids, self.arc_ids
        first, second = (arcs, nodes) if self.on_arcs else (nodes, arcs)
        for ids in (first, second):
            if len(ids) == rows and not isinstance(x, torch.nn.Parameter):
                return ids
        return torch.arange(rows, device=x.device)

    # Parts that are computed again in the backward pass

    def _guard(self) -> None:
        """Refuse a part of the model that would be computed again without our knowing."""
        if self.keeping or self.replaying:
            return
        if torch.is_grad_enabled() != self._with_grad:
            raise InputError(
                "a part of the model that reads neighbours, draws or normalises turns gradients off "
                "(torch.no_grad, or checkpoint with use_reentrant=True); use checkpoint(..., use_reentrant=False, "
                "context_fn=fg.checkpoint_context)"
            )
        if _saved_tensor_hooks() != self._hooks:
            raise InputError(
                "a checkpointed part of the model reads neighbours, draws or normalises; "
                "call checkpoint(..., use_reentrant=False, context_fn=fg.checkpoint_context)"
            )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around a checkpointed part, the first time."""
        self.keeping = True
        try:
            yield
        finally:
            self.keeping = False

    @contextmanager
    def again(self, start: Counts) -> Iterator[None]:
        """Around the same part in the backward pass: the same numbers, and nothing crosses twice."""
        now, self.counts, self.replaying = self.counts, replace(start), True
        try:
            yield
        finally:
            self.counts, self.replaying = now, False


def _saved_tensor_hooks() -> object:
    """What activation checkpointing sets, else None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)
