"""Weights whose shape is known from the first input alone, such as those of PyG's SAGEConv(-1, 8)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fullgraph.own_model.on_rows import inputs_of
from fullgraph.partition import GraphFacts


def fill_lazy(model: nn.Module, width: int, inputs: Mapping[str, Tensor]) -> None:
    """Give lazy weights their shapes and first values, by a forward pass over two rows of `width` and no arcs.

    inputs: what the model's forward may take beside them, two rows of nodes and none of edges.
    """
    if not any(is_lazy(weight) for weight in (*model.parameters(), *model.buffers())):
        return
    known: dict[str, Any] = {name: inputs[name] for name in inputs_of(model) if name in inputs}
    like = next((weight for weight in model.parameters() if not is_lazy(weight)), torch.zeros(0))
    x = torch.zeros(2, width, device=like.device, dtype=like.dtype)
    was_training = model.training
    with torch.no_grad():
        model.eval()(x, torch.zeros(2, 0, dtype=torch.int64, device=like.device), **known)
    model.train(was_training)


def inputs_as(facts: GraphFacts) -> dict[str, Tensor]:
    """Two nodes and no edges of such a graph, as `fill_lazy` takes them."""
    inputs = {"node_id": torch.arange(2)}
    if facts.weighted:
        inputs["edge_weight"] = torch.zeros(0)
    if facts.edge_features:
        inputs["edge_attr"] = torch.zeros(0, facts.edge_features)
    return inputs
