"""Models: plain layers over a view."""

from fullgraph.axes import MODELS
from fullgraph.nn.conv import Conv, GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv
from fullgraph.nn.deep import InitialResidual, PreActivation
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import GNN, Block, Chain, State
from fullgraph.nn.norm import BatchNorm, LayerNorm
from fullgraph.nn.spec import GAT, GCN, GCNII, GIN, AnyModel, GraphSAGE, ModelSpec, ResGCN, Stack, Usual, check_spec
from fullgraph.nn.typed import HGT, RGAT, RGCN, HeteroSAGE, TypedGNN, TypedModel
from fullgraph.nn.typed_attention import HGTConv, RGATConv
from fullgraph.nn.typed_conv import HeteroSAGEConv, RGCNConv, TypedConv
from fullgraph.nn.typed_input import NodeEmbedding, TypedInput
from fullgraph.nn.view import IDENTITY, Features, GraphView, Mapped, Message, RowMap

__all__ = [
    "GAT",
    "GCN",
    "GCNII",
    "GIN",
    "GNN",
    "HGT",
    "IDENTITY",
    "MODELS",
    "RGAT",
    "RGCN",
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
    "HGTConv",
    "HeteroSAGE",
    "HeteroSAGEConv",
    "InitialResidual",
    "LayerNorm",
    "Linear",
    "Mapped",
    "Message",
    "ModelSpec",
    "NodeEmbedding",
    "PreActivation",
    "RGATConv",
    "RGCNConv",
    "ResGCN",
    "RowMap",
    "SAGEConv",
    "Stack",
    "State",
    "TypedConv",
    "TypedGNN",
    "TypedInput",
    "TypedModel",
    "Usual",
    "check_spec",
]
