"""A user's module, made able to run on the rows of one rank."""

import inspect
from typing import Any

from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.own_model.forward import Forward
from fullgraph.own_model.graph import RankGraph
from fullgraph.own_model.mode import entered
from fullgraph.own_model.prepare import prepared

ARC_INPUTS = ("edge_weight", "edge_attr")


def arc_inputs_of(module: nn.Module) -> list[str]:
    """What a model's forward takes of the arcs. PyG's own models name both, and say elsewhere which they can use."""
    named = [name for name in ARC_INPUTS if name in inspect.signature(module.forward).parameters]
    if not hasattr(module, "supports_edge_attr"):
        return named
    made_for = any(getattr(part, "edge_dim", None) for part in module.modules())
    can = {"edge_weight": module.supports_edge_weight, "edge_attr": module.supports_edge_attr and made_for}
    return [name for name in named if can[name]]


class OnRows:
    """Runs a module on the owned rows of a graph."""

    def __init__(self, module: nn.Module, *, seed: int, draws: bool = True) -> None:
        self.seed, self.draws = seed, draws
        self.module = prepared(module)
        self.layers = 0  # that the last forward pass entered
        self.takes = arc_inputs_of(self.module)

    def __call__(self, graph: RankGraph, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output, a row for every owned node."""
        forward = Forward(graph, seed=self.seed, draws=self.draws)
        with entered(forward):
            out = self.module(x, forward.arcs, *args, **kwargs)
        self.layers = forward.counts.layers
        if not isinstance(out, Tensor) or out.shape[:1] != (graph.num_owned,):
            given = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise InputError(
                f"the model returned {given} for {graph.num_owned} nodes; its forward must return logits, a row a node"
            )
        return out

    def arc_inputs(self, graph: RankGraph) -> dict[str, Tensor]:
        """The graph's own edge weights and features, as far as the model's forward takes them."""
        arcs = graph.local.arcs
        has = {"edge_weight": arcs.weight, "edge_attr": arcs.attr}
        return {name: value for name in self.takes if (value := has[name]) is not None}
