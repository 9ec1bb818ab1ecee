"""What model: plain layers over a view."""

from fullgraph.nn.conv import Conv, GATConv, GCNConv, GINConv, SAGEConv
from fullgraph.nn.linear import Linear
from fullgraph.nn.model import GNN, Block, Chain, State
from fullgraph.nn.norm import BatchNorm
from fullgraph.nn.spec import GAT, GCN, GIN, MODELS, NORMS, GraphSAGE, ModelSpec
from fullgraph.nn.view import IDENTITY, Features, GraphView, Message, RowMap

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "IDENTITY",
    "MODELS",
    "NORMS",
    "BatchNorm",
    "Block",
    "Chain",
    "Conv",
    "Features",
    "GATConv",
    "GCNConv",
    "GINConv",
    "GraphSAGE",
    "GraphView",
    "Linear",
    "Message",
    "ModelSpec",
    "RowMap",
    "SAGEConv",
    "State",
]
