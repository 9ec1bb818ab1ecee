"""Graphs: the `Graph` value, its loaders and generators, and feature scaling."""

from fullgraph.data.features import FEATURE_KINDS, FeatureScaler, fit_features
from fullgraph.data.graph import Graph
from fullgraph.data.loaders import FORMS, LOADERS, as_graph, load
from fullgraph.data.names import Names
from fullgraph.data.npz import load_npz, save_npz

__all__ = [
    "FEATURE_KINDS",
    "FORMS",
    "LOADERS",
    "FeatureScaler",
    "Graph",
    "Names",
    "as_graph",
    "fit_features",
    "load",
    "load_npz",
    "save_npz",
]
