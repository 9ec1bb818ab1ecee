"""A user's module, made able to run on the rows of one rank."""

import inspect
from typing import Any

from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_code import own_code, unfit
from fullgraph.own_model.chunked import Chunks
from fullgraph.own_model.forward import Forward
from fullgraph.own_model.mode import entered
from fullgraph.own_model.prepare import prepared
from fullgraph.own_model.pyg_view import PygView
from fullgraph.own_model.rows.guard import Guard
from fullgraph.own_model.rows.spaces import SAME, Even, Rows, mark, mark_of, rows_of

INPUTS = ("edge_weight", "edge_attr", "node_id")


def inputs_of(module: nn.Module) -> list[str]:
    """What a model's forward takes beside x and edge_index.

    PyG's own models name edge_weight and edge_attr, and say elsewhere which of them they can use.
    """
    named = [name for name in INPUTS if name in inspect.signature(module.forward).parameters]
    if not hasattr(module, "supports_edge_attr"):
        return named
    made_for = any(getattr(part, "edge_dim", None) for part in module.modules())
    can = {"edge_weight": module.supports_edge_weight, "edge_attr": module.supports_edge_attr and made_for}
    return [name for name in named if can.get(name, True)]


class OnRows:
    """Runs a module on the owned rows of a graph."""

    def __init__(
        self, module: nn.Module, *, seed: int, draws: bool = True, checks: bool = True, chunks: Chunks | None = None
    ) -> None:
        """checks: refuse operations that mix rows of one rank alone. chunks: of layers whose messages are many."""
        self.seed, self.draws, self.guard = seed, draws, Guard(checks=checks)
        self.chunks = chunks
        self.module = prepared(module, chunks)
        self.guard.owned = {id(x) for x in (*self.module.parameters(), *self.module.buffers())}
        self.layers = 0  # that the last forward pass entered
        self.takes = inputs_of(self.module)

    def __call__(self, view: PygView, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output, a row for every owned node."""
        forward = Forward(view, seed=self.seed, guard=self.guard, draws=self.draws)
        self.guard.passes += self.module.training
        args = tuple(_marked(view, value, "edge") for value in args)
        kwargs = {name: _marked(view, value, name) for name, value in kwargs.items()}
        x, edge_index = forward.as_nodes(x), view.marked_edge_index
        fix = "forward is called with (x, edge_index)"
        if view.num_owned < view.num_nodes:
            fix += f" of one rank's {view.num_owned} of {view.num_nodes} nodes, and cannot rely on their number"
        with entered(forward), own_code(self.module, fix=fix, torch_alone=True):
            out = self.module(x, edge_index, *args, **kwargs)
        self.layers = forward.counts.layers
        if not isinstance(out, Tensor) or out.shape[:1] != (view.num_owned,):
            given = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            problem = f"returned {given} for {view.num_owned} nodes; its forward must return logits, a row a node"
            raise unfit(self.module.forward, problem, "the model")
        rows = rows_of(out)
        owned = rows is not None and not rows.dim and rows.points is None and rows.space.is_like(view.nodes)
        if self.guard.checks and not owned and not isinstance(mark_of(out), Even):
            raise InputError(
                "the model returned a tensor that is not made of rows of nodes; return a row for each row of x"
            )
        return out.view_as(out)  # without the mark, which is of use in this pass alone

    def inputs(self, view: PygView) -> dict[str, Tensor]:
        """The graph's own edge weights, edge features and node ids, as far as the model's forward takes them."""
        arcs = view.graph.arcs
        has = {"edge_weight": arcs.weight, "edge_attr": arcs.attr, "node_id": view.ids}
        return {name: value for name in self.takes if (value := has[name]) is not None}


def _marked(view: PygView, value: Any, name: str) -> Any:
    """An input of the model, marked as rows of nodes or of edges by its length."""
    if not isinstance(value, Tensor) or mark_of(value) is not None:
        return value
    if not value.dim():
        return mark(value, SAME)
    fits = {"edges": len(value) == view.edges.size, "nodes": len(value) == view.num_owned}
    if fits["edges"] and ("edge" in name or not fits["nodes"]):
        return mark(value, Rows(view.edges, 0))
    return mark(value, Rows(view.nodes, 0) if fits["nodes"] else SAME)
