"""Weights whose shapes depend on the first input, such as those of PyG's SAGEConv(-1, 8)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fullgraph.own_model.inputs import Takes
from fullgraph.own_model.outputs import changed
from fullgraph.partition import GraphFacts
from fullgraph.placement.by_type import union_width


def fill_lazy(model: nn.Module, x: Any, edge_index: Any, inputs: Mapping[str, Any]) -> None:
    """Initialise lazy weights by a forward pass over two nodes and no edges (`two_nodes`).

    inputs: other arguments of the model's forward, with two rows of nodes and none of edges.
    """
    if not any(is_lazy(weight) for weight in (*model.parameters(), *model.buffers())):
        return
    takes = Takes.of(model, tuple(inputs))
    known: dict[str, Any] = {name: inputs[name] for name in inputs if takes.data or name in takes.names}
    like = next((weight for weight in model.parameters() if not is_lazy(weight)), torch.zeros(0))

    def alike(value: Any) -> Any:
        return changed(value, lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype))

    was_training = model.training
    with torch.no_grad():
        takes.call(model.eval(), alike(x), alike(edge_index), (), known)
    model.train(was_training)


def two_nodes(facts: GraphFacts, width: int = 0, *, by_type: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """Two nodes and no edges of such a graph: x, edge_index and the other inputs of a model.

    width: of x; 0: that of the graph's features. by_type: two nodes of each type.
    """
    none = torch.zeros(2, 0, dtype=torch.int64)
    if not by_type:
        width = width or (union_width(facts.types) if facts.types else facts.features)
        return torch.zeros(2, width), none, inputs_as(facts)
    _, relations = facts.types.metadata()
    x = {kind.name: torch.zeros(2, kind.features) for kind in facts.types.nodes if kind.features}
    return x, dict.fromkeys(relations, none), inputs_by_type(facts)


def inputs_by_type(facts: GraphFacts) -> dict[str, Any]:
    """The same inputs of a typed graph, as dictionaries by type and relation."""
    types, labels = facts.types, _labels(facts)
    edges = [((fact.source, fact.name, fact.target), fact) for fact in types.relations]
    by_type: dict[str, Any] = {
        "node_id": {kind.name: torch.arange(2) for kind in types.nodes},
        "num_nodes": {kind.name: 2 for kind in types.nodes},
        "edge_weight": {name: torch.zeros(0) for name, fact in edges if fact.weighted},
        "edge_attr": {name: torch.zeros(0, fact.features) for name, fact in edges if fact.features},
    }
    by_type = {name: value for name, value in by_type.items() if value}
    of_target = {name: {types.target: value} for name, value in labels.items()}
    return by_type | labels | {f"{name}_dict": value for name, value in (by_type | of_target).items()}


def inputs_as(facts: GraphFacts) -> dict[str, Tensor]:
    """Two nodes and no edges of such a graph, for `fill_lazy`."""
    inputs = {"node_id": torch.arange(2), **_labels(facts)}
    for size, fields in ((2, facts.node_fields), (0, facts.edge_fields)):
        inputs |= {
            one.name: torch.zeros(size, *one.shape, dtype=_type_of(one.dtype, bool(facts.types))) for one in fields
        }
    if facts.weighted:
        inputs["edge_weight"] = torch.zeros(0)
    if facts.edge_features:
        inputs["edge_attr"] = torch.zeros(0, facts.edge_features)
    return inputs


def _labels(facts: GraphFacts) -> dict[str, Tensor]:
    some = facts.multilabel or facts.real
    labels = {"y": torch.zeros(2, facts.classes) if some else torch.zeros(2, dtype=torch.int64)}
    return labels | {name: torch.zeros(2, dtype=torch.bool) for name in ("train_mask", "val_mask", "test_mask")}


def _type_of(name: str, typed: bool) -> torch.dtype:
    """The dtype of an array; real numbers have the dtype of the features."""
    return torch.float32 if name.startswith("float") else torch.int64 if typed else getattr(torch, name)
