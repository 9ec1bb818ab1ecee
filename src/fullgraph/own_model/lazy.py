"""Weights whose shapes depend on the first input, such as those of PyG's SAGEConv(-1, 8)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fullgraph.own_model.inputs import Takes
from fullgraph.partition import GraphFacts


def fill_lazy(model: nn.Module, width: int, inputs: Mapping[str, Tensor]) -> None:
    """Initialise lazy weights by a forward pass over two rows of `width` and no arcs.

    inputs: other arguments of the model's forward, with two rows of nodes and none of edges.
    """
    if not any(is_lazy(weight) for weight in (*model.parameters(), *model.buffers())):
        return
    takes = Takes.of(model, tuple(inputs))
    known: dict[str, Any] = {name: inputs[name] for name in inputs if takes.data or name in takes.names}
    like = next((weight for weight in model.parameters() if not is_lazy(weight)), torch.zeros(0))
    x = torch.zeros(2, width, device=like.device, dtype=like.dtype)
    was_training = model.training
    with torch.no_grad():
        takes.call(model.eval(), x, torch.zeros(2, 0, dtype=torch.int64, device=like.device), (), known)
    model.train(was_training)


def inputs_as(facts: GraphFacts) -> dict[str, Tensor]:
    """Two nodes and no edges of such a graph, for `fill_lazy`."""
    inputs = {"node_id": torch.arange(2), "y": torch.zeros(2, dtype=torch.int64)}
    inputs |= {name: torch.zeros(2, dtype=torch.bool) for name in ("train_mask", "val_mask", "test_mask")}
    for size, fields in ((2, facts.node_fields), (0, facts.edge_fields)):
        inputs |= {one.name: torch.zeros(size, *one.shape, dtype=_type_of(one.dtype)) for one in fields}
    if facts.multilabel or facts.real:
        inputs["y"] = torch.zeros(2, facts.classes)
    if facts.weighted:
        inputs["edge_weight"] = torch.zeros(0)
    if facts.edge_features:
        inputs["edge_attr"] = torch.zeros(0, facts.edge_features)
    return inputs


def _type_of(name: str) -> torch.dtype:
    """The dtype of an array; real numbers have the dtype of the features."""
    return torch.float32 if name.startswith("float") else getattr(torch, name)
