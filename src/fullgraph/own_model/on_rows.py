"""Run a user's module on the rows of one rank."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_code import own_code, unfit
from fullgraph.own_model.chunked import Chunks
from fullgraph.own_model.forward import Forward
from fullgraph.own_model.inputs import Takes, edge_names, node_names
from fullgraph.own_model.live import LiveRows, Readings
from fullgraph.own_model.mode import entered
from fullgraph.own_model.outputs import changed, logits_of, parts_of
from fullgraph.own_model.prepare import prepared, unwrapped
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.recomputed import give_contexts
from fullgraph.own_model.rows.guard import Guard
from fullgraph.own_model.rows.spaces import SAME, Even, Rows, mark, mark_of, rows_of
from fullgraph.own_model.tables import Tables
from fullgraph.own_model.typed.views import TypedView


@dataclass(frozen=True, eq=False)
class Returned:
    """A model's output for a rank's rows."""

    whole: Any  # as the model returned it
    logits: Tensor
    rows: list[Tensor]  # the logits, and all other tensors with one row per owned node
    losses: bool  # True if it includes a single number with a gradient, which may be the model's own loss


class OnRows:
    """Runs a module on the owned rows of a graph."""

    def __init__(
        self, module: nn.Module, *, seed: int, draws: bool = True, checks: bool = True, chunks: Chunks | None = None,
        fields: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """checks: refuse operations that mix rows of one rank alone. chunks: for layers with large messages.

        fields: names of the graph's fields.
        """
        give_contexts()
        self.seed, self.draws, self.guard = seed, draws, Guard(checks=checks)
        self.chunks = chunks
        self.takes = Takes.of(unwrapped(module), fields)
        self.module = prepared(module, chunks)
        self.hold(None)
        self.layers = 0  # entered in the last forward pass
        self.readings = Readings()  # of the training passes
        self.live: LiveRows | None = None  # the rows that layers compute in training; None: all rows

    def hold(self, tables: Tables | None) -> None:
        """tables: of the module, reduced to this rank's rows."""
        self.tables = tables
        self.guard.owned = {id(x) for x in (*self.module.parameters(), *self.module.buffers())}

    def __call__(self, view: PygView, x: Any, *args: Any, **kwargs: Any) -> Returned:
        """The module's output for the owned rows."""
        forward = Forward(view, seed=self.seed, guard=self.guard, draws=self.draws)
        forward.room = None if self.chunks is None else partial(self.chunks.room, view.ids.device, view.transport.size)
        forward.live = self.live if self.module.training else None
        self.guard.passes += self.module.training
        if self.tables:
            self.tables.mark(view)
            self.guard.tables = self.tables.held()
        args = tuple(_marked(view, value, "edge") for value in args)
        kwargs = {name: _marked(view, value, name) for name, value in kwargs.items()}
        x = _marked(view, x, "x") if isinstance(view, TypedView) else forward.as_nodes(x)
        edge_index = view.marked_edge_index
        for name, count in _counts(view, forward).items():
            if name in self.takes.needed or (self.takes.data and isinstance(view, TypedView)):
                kwargs.setdefault(name, count)
        fix = "forward is called with a Data" if self.takes.data else "forward is called with (x, edge_index)"
        if view.num_owned < view.num_nodes:
            fix += f" of one rank's {view.num_owned} of {view.num_nodes} nodes, and cannot rely on their number"
        with entered(forward), own_code(self.module, fix=fix, torch_alone=True):
            out = self.takes.call(self.module, x, edge_index, args, kwargs)
        self.layers = forward.counts.layers
        if self.module.training:
            self.readings = self.readings.also(forward.counts)
        if forward.live is not None:
            forward.live.check(forward.counts)
        return self._returned(view, out)

    def _returned(self, view: PygView, out: Any) -> Returned:
        named = [(name, x) for name, x in parts_of(out) if isinstance(x, Tensor) and x.layout is torch.strided]
        tensors = [x for _, x in named]
        owned = [x for x in tensors if _is_owned(view, x)]
        kind = view.target.kind
        logits = logits_of([(name, x) for name, x in named if any(x is one for one in owned)], kind)
        if logits is None:  # zeros for all nodes, or rows that are not followed (check=False)
            logits = logits_of([(name, x) for name, x in named if x.shape[:1] == (view.target.num_owned,)], kind)
        if logits is None:
            given = type(out).__name__
            if isinstance(out, Tensor):
                given = f"shape {tuple(out.shape)}" if tensors else "a sparse tensor"
            nodes = f"{view.target.num_owned} {kind}".rstrip()
            problem = f"returned {given} for {nodes} nodes; its forward must return logits, one row per node"
            raise unfit(self.module.forward, problem, "the model")
        if self.guard.checks and not _is_owned(view, logits) and not isinstance(mark_of(logits), Even):
            raise InputError(
                "the model returned a tensor that is not made of rows of nodes; return a row for each row of x"
            )
        losses = any(not x.dim() and x.requires_grad for x in tensors)
        bare = {id(x): x.view_as(x) for x in tensors}  # without marks, which belong to this pass
        rows = [logits, *(x for x in owned if x is not logits)]
        whole = changed(out, lambda x: bare.get(id(x), x))
        return Returned(whole, bare[id(logits)], [bare[id(x)] for x in rows], losses)

    def inputs(self, view: PygView) -> dict[str, Any]:
        """The graph's values for the arguments of the model's forward."""
        return self.takes.of_graph(view, self.module)


def _is_owned(view: PygView, x: Tensor) -> bool:
    """Whether a tensor has one row per owned node."""
    rows = rows_of(x)
    return rows is not None and not rows.dim and rows.points is None and rows.space.is_like(view.target.nodes)


def _counts(view: PygView, forward: Forward) -> dict[str, Any]:
    """Numbers of nodes, by the names of a forward's arguments for them."""
    if isinstance(view, TypedView):
        return {"num_nodes_dict": {kind: forward.count(part.nodes) for kind, part in view.parts.items()}}
    return {"num_nodes": forward.count(view.nodes)}


def _of_view(view: PygView, value: Tensor) -> Tensor:
    """A tensor that another view marked as rows of all edges, marked as this view's."""
    rows = rows_of(value)
    if rows is None or rows.dim or rows.points is not None or not rows.is_single or rows.space is view.edges:
        return value
    of_edges = rows.space.kind == "edges" and rows.space.is_like(view.edges)
    return mark(value, Rows(view.edges, 0)) if of_edges else value


def _marked(view: PygView, value: Any, name: str) -> Any:
    """A model input, marked as rows of nodes or of edges by its name, else by its length."""
    if isinstance(view, TypedView):
        return view.marked(value)
    if not isinstance(value, Tensor):
        return value
    known = edge_names(view), node_names(view)
    if mark_of(value) is not None and not any(name in names for names in known):
        return _of_view(view, value)
    if not value.dim():
        return mark(value, SAME)
    fits = {"edges": len(value) == view.edges.size, "nodes": len(value) == view.num_owned}
    if fits["edges"] and name not in known[1] and (name in known[0] or "edge" in name or not fits["nodes"]):
        return mark(value, Rows(view.edges, 0))
    return mark(value, Rows(view.nodes, 0) if fits["nodes"] else SAME)
