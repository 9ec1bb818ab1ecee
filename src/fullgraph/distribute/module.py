"""`distribute`: a model written for PyG, on one rank's rows."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from fullgraph.distribute.forward import Forward
from fullgraph.distribute.graph import RankGraph
from fullgraph.distribute.mode import running
from fullgraph.distribute.prepare import Stage, prepared
from fullgraph.errors import InputError

ARC_INPUTS = ("edge_weight", "edge_attr")


class OnRows(nn.Module):
    """A user's module and how it is run on the rows of a graph."""

    def __init__(self, module: nn.Module, *, seed: int) -> None:
        super().__init__()
        self.stage = Stage()
        self.module = prepared(module, self.stage)
        self.seed = seed
        self.takes = [name for name in ARC_INPUTS if name in inspect.signature(self.module.forward).parameters]

    def run(self, graph: RankGraph, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The module's output for the owned rows of `graph`."""
        forward = Forward(graph, seed=self.seed)
        self.stage.forward = forward
        try:
            with running(forward):
                out = self.module(x, forward.arcs, *args, **kwargs)
        finally:
            self.stage.forward = None
        self.layers = forward.counts.layers
        if not isinstance(out, Tensor) or out.shape[:1] != (graph.num_owned,):
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise InputError(
                f"the model gave {shape} for {graph.num_owned} nodes; its forward must return logits, a row a node"
            )
        return out

    def arc_inputs(self, graph: RankGraph) -> dict[str, Tensor]:
        """The graph's own edge weights and features, as far as the model's forward takes them."""
        arcs = graph.local.arcs
        has = {"edge_weight": arcs.weight, "edge_attr": arcs.attr}
        return {name: value for name in self.takes if (value := has[name]) is not None}
