"""Typed graphs: nodes of several types, and edges of several relations."""

from fullgraph.data.typed.graph import Edges, NodeType, Relation, TypedGraph, spelled

__all__ = ["Edges", "NodeType", "Relation", "TypedGraph", "spelled"]
