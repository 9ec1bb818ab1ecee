"""What a run passes to the constructor of a model for a typed graph, and learned rows of types without features."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fullgraph.graph_types import EDGE_TYPE, GraphTypes, RelationFact, TypeFact
from fullgraph.own_model.typed.forms import LEARNED, takes_dicts
from fullgraph.placement.by_type import union_width

TYPES = ("metadata", "node_types", "edge_types", "num_nodes_dict", "in_channels_dict")
NUMBERS = ("num_relations", "num_edge_types", "num_node_types")  # options, which a typed graph fills in
WIDTH = 64  # columns of learned rows
Parameters = Mapping[str, inspect.Parameter]


def one_type(width: int) -> GraphTypes:
    """The types of a graph with one type and one relation, to inspect a model before its graph is known."""
    return GraphTypes((TypeFact("node", 1, width),), (RelationFact("node", "edge", "node", 0),), "node")


def asks_for_types(names: Parameters) -> bool:
    return any(name in names for name in TYPES)


def arguments(kind: Any, names: Parameters, types: GraphTypes, widths: tuple[str, ...]) -> dict[str, Any]:
    """Constructor arguments by name. widths: the names that stand for the widths of the input."""
    kinds, relations = types.metadata()
    of_type = {fact.name: fact.features or WIDTH for fact in types.nodes}
    found: dict[str, Any] = {
        "metadata": (kinds, relations),
        "node_types": kinds,
        "edge_types": relations,
        "num_nodes_dict": {fact.name: fact.nodes for fact in types.nodes},
        "in_channels_dict": of_type,
        "num_relations": len(relations),
        "num_edge_types": len(relations),
        "num_node_types": len(kinds),
    }
    found = {name: value for name, value in found.items() if name in names}
    for name in widths:
        if name in names:
            width = _width(kind, names, names[name], types, of_type)
            found |= {} if width is None else {name: width}
    return found


def _width(kind: Any, names: Parameters, width: inspect.Parameter, types: GraphTypes, of_type: dict[str, int]) -> Any:
    """The width of the input; None: the default of the argument, such as -1 for lazy layers."""
    forward = getattr(kind, "forward", None) if isinstance(kind, type) else None
    over_union = EDGE_TYPE in inspect.signature(forward).parameters if forward else False
    if over_union or (any(name in names for name in NUMBERS) and not asks_for_types(names)):
        return union_width(types)
    if type(width.default) is int:
        return None
    if width.annotation is int or str(width.annotation) == "int":
        found = set(of_type.values())
        return found.pop() if len(found) == 1 else -1
    return of_type


def add_learned_rows(model: nn.Module, types: GraphTypes, has_table: Any) -> None:
    """Give a model a weight with a row for each node of a type without features, unless it has one.

    has_table: whether the model has a weight with that many rows.
    """
    for fact in types.nodes:
        if not fact.features and fact.nodes and not has_table(model, fact.nodes):
            rows = torch.empty(fact.nodes, WIDTH).uniform_(-((3 / WIDTH) ** 0.5), (3 / WIDTH) ** 0.5)
            model.register_parameter(f"{LEARNED}{fact.name}", nn.Parameter(rows))


def complete(model: nn.Module, types: GraphTypes, has_table: Any) -> bool:
    """Prepare a model for a typed graph; return whether it takes dictionaries by type."""
    by_type = takes_dicts(model)
    if by_type:
        add_learned_rows(model, types, has_table)
    return by_type
