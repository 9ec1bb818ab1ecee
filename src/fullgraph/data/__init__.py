"""Graphs: the `Graph` value, its loaders and generators, and feature scaling."""

from fullgraph.axes import FEATURE_KINDS
from fullgraph.data.features import FeatureScaler, fit_features
from fullgraph.data.graph import Graph
from fullgraph.data.loaders import (
    FORMS,
    as_any_graph,
    as_graph,
    as_union,
    load,
    load_any,
    load_typed,
    load_union,
    refused,
)
from fullgraph.data.names import Names
from fullgraph.data.npz import load_npz, save_npz
from fullgraph.data.typed import Edges, NodeType, Relation, TypedGraph

__all__ = [
    "FEATURE_KINDS",
    "FORMS",
    "Edges",
    "FeatureScaler",
    "Graph",
    "Names",
    "NodeType",
    "Relation",
    "TypedGraph",
    "as_any_graph",
    "as_graph",
    "as_union",
    "fit_features",
    "load",
    "load_any",
    "load_npz",
    "load_typed",
    "load_union",
    "refused",
    "save_npz",
]
