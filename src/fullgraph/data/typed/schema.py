"""A typed graph with the types and relations of another one, to predict with a trained model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fullgraph.errors import InputError, nearest, one_line
from fullgraph.graph_types import GraphTypes

if TYPE_CHECKING:
    from fullgraph.data.typed.graph import TypedGraph


def like(graph: TypedGraph, types: GraphTypes) -> TypedGraph:
    """Return the graph with types and relations in the order of `types`, with its target type, and without labels.

    Refuse a graph with other types, relations or widths, and types whose nodes have learned rows.
    """
    learned = [kind.name for kind in types.nodes if kind.nodes and not kind.features]
    if learned:
        raise InputError(
            f"the model has learned rows for {one_line(', '.join(learned), 80)}, which had no features, and knows none "
            "for nodes of another graph: train it again with features for all types (docs/typed.md)"
        )
    _check_same("node type", graph.nodes, [kind.name for kind in types.nodes], graph.name)
    edges = {"__".join(relation): relation for relation in graph.edges}
    _check_same("relation", edges, [str(relation) for relation in types.relations], graph.name)
    for kind in types.nodes:
        own = graph.nodes[kind.name]
        if own.num_features != kind.features and (own.num_nodes or own.num_features):
            raise InputError(f"{graph.name}: {kind.name} has {own.num_features} features, and the run was trained with "
                             f"{kind.features}; give the same features in the same order")  # fmt: skip
    if graph.pairs is not None and types.pairs and "__".join(graph.pairs[0]) != types.pairs:
        raise InputError(f"{graph.name} has pairs of {'__'.join(graph.pairs[0])}, and the run scores {types.pairs}")
    return graph._with(
        nodes={kind.name: graph.nodes[kind.name] for kind in types.nodes},
        edges={edges[str(relation)]: graph.edges[edges[str(relation)]] for relation in types.relations},
        target=types.target or None,
        labels=None,
    )


def _check_same(what: str, found: Iterable[str], wanted: list[str], name: str) -> None:
    """Refuse names that are missing or unknown."""
    held = list(found)
    missing, unknown = ([one for one in a if one not in b] for a, b in ((wanted, held), (held, wanted)))
    if missing:
        few = "give it num_nodes 0" if what == "node type" else "give it an empty edge_index [2, 0]"
        raise InputError(f"{name} lacks the {what} {one_line(', '.join(missing), 80)} of the run's graph"
                         f"{nearest(missing[0], unknown)}: {few} if there are none")  # fmt: skip
    if unknown:
        raise InputError(f"{name} has the {what} {one_line(', '.join(unknown), 80)}, which the run's graph does not "
                         "have: leave it out")  # fmt: skip
