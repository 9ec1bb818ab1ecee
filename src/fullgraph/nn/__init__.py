"""Models: plain layers over a view."""

from fullgraph.axes import MODELS
from fullgraph.nn.conv import Conv, GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv
from fullgraph.nn.deep import InitialResidual, PreActivation
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import GNN, Block, Chain, State
from fullgraph.nn.norm import BatchNorm, LayerNorm
from fullgraph.nn.spec import GAT, GCN, GCNII, GIN, AnyModel, GraphSAGE, ModelSpec, ResGCN, Stack, Usual, check_spec
from fullgraph.nn.view import IDENTITY, Features, GraphView, Mapped, Message, RowMap

__all__ = [
    "GAT",
    "GCN",
    "GCNII",
    "GIN",
    "GNN",
    "IDENTITY",
    "MODELS",
    "AnyModel",
    "BatchNorm",
    "Block",
    "Chain",
    "Conv",
    "Features",
    "GATConv",
    "GCN2Conv",
    "GCNConv",
    "GINConv",
    "GraphSAGE",
    "GraphView",
    "InitialResidual",
    "LayerNorm",
    "Linear",
    "Mapped",
    "Message",
    "ModelSpec",
    "PreActivation",
    "ResGCN",
    "RowMap",
    "SAGEConv",
    "Stack",
    "State",
    "Usual",
    "check_spec",
]
