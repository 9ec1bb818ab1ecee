"""Model files as users of PyG write them, for gpu_layers.py:  fullgraph train GRAPH --model layer_nets.py:GATv2"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

ARC_WIDTH = 4  # features of an edge, where a model reads them


class SAGE(nn.Module):
    """SAGEConv 3x128."""

    aggr = "mean"

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 128) -> None:
        super().__init__()
        widths = [in_channels, hidden, hidden, out_channels]
        self.convs = nn.ModuleList(pyg.SAGEConv(widths[k], widths[k + 1], aggr=self.aggr) for k in range(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        return self.convs[-1](x, edge_index)


class SAGEMax(SAGE):
    """SAGEConv(aggr="max") 3x128."""

    aggr = "max"


class GCN(nn.Module):
    """GCNConv 3x128 + BatchNorm."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 128) -> None:
        super().__init__()
        widths = [in_channels, hidden, hidden, out_channels]
        self.convs = nn.ModuleList(pyg.GCNConv(widths[k], widths[k + 1]) for k in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = norm(conv(x, edge_index)).relu()
        return self.convs[-1](x, edge_index)


class GATv2(nn.Module):
    """GATv2Conv 2x(2 heads of 32)."""

    kind = pyg.GATv2Conv

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.first = self.kind(in_channels, hidden, heads=heads)
        self.second = self.kind(hidden * heads, hidden, heads=heads)
        self.head = nn.Linear(hidden * heads, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(F.elu(self.second(F.elu(self.first(x, edge_index)), edge_index)))


class Transformer(GATv2):
    """TransformerConv 2x(2 heads of 32)."""

    kind = pyg.TransformerConv


class WideGATv2(nn.Module):
    """One GATv2 layer 128 wide."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 128) -> None:
        super().__init__()
        self.conv, self.head = pyg.GATv2Conv(in_channels, hidden), nn.Linear(hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index).relu())


class OneLayer(nn.Module):
    """A layer of LAYERS between two linear maps:  --model layer_nets.py:OneLayer -m layer=PNAConv"""

    def __init__(self, in_channels: int, out_channels: int, layer: str = "GCNConv", hidden: int = 64) -> None:
        super().__init__()
        self.encoder, self.conv = nn.Linear(in_channels, hidden), LAYERS[layer](hidden)
        self.head = nn.Linear(3 * hidden if layer == "MixHopConv" else hidden, out_channels)
        self.rows = 2 if layer == "GCN2Conv" else 1  # that layer takes the first rows as well

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x).relu()
        return self.head(self.conv(*[x] * self.rows, edge_index).relu())


class OneFeaturedLayer(OneLayer):
    """The same for a layer that reads features of edges."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.head(self.conv(self.encoder(x).relu(), edge_index, edge_attr).relu())


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out))


def pna(width: int) -> nn.Module:
    degrees = torch.bincount(torch.arange(512))  # a histogram of some degrees: it only sets two constants
    return pyg.PNAConv(width, width, ["mean", "min", "max", "std"], ["identity", "amplification"], degrees)


E = {"edge_dim": ARC_WIDTH}
PLAIN: dict[str, Callable[[int], nn.Module]] = {
    "AGNNConv": lambda w: pyg.AGNNConv(),
    "APPNP": lambda w: pyg.APPNP(3, 0.1),
    "ARMAConv": lambda w: pyg.ARMAConv(w, w),
    "AntiSymmetricConv": lambda w: pyg.AntiSymmetricConv(w),
    "ClusterGCNConv": lambda w: pyg.ClusterGCNConv(w, w),
    "EGConv": lambda w: pyg.EGConv(w, w, aggregators=["sum", "symnorm", "max"]),
    "EdgeConv": lambda w: pyg.EdgeConv(mlp(2 * w, w)),
    "FiLMConv": lambda w: pyg.FiLMConv(w, w),
    "GATConv": lambda w: pyg.GATConv(w, w // 2, heads=2),
    "GATv2Conv": lambda w: pyg.GATv2Conv(w, w // 2, heads=2),
    "GCN2Conv": lambda w: pyg.GCN2Conv(w, 0.1),
    "GCNConv": lambda w: pyg.GCNConv(w, w),
    "GINConv": lambda w: pyg.GINConv(mlp(w, w)),
    "GatedGraphConv": lambda w: pyg.GatedGraphConv(w, 2),
    "GraphConv": lambda w: pyg.GraphConv(w, w),
    "LEConv": lambda w: pyg.LEConv(w, w),
    "MFConv": lambda w: pyg.MFConv(w, w),
    "MixHopConv": lambda w: pyg.MixHopConv(w, w),
    "PNAConv": pna,
    "SAGEConv": lambda w: pyg.SAGEConv(w, w),
    "SAGEConv max": lambda w: pyg.SAGEConv(w, w, aggr="max"),
    "SGConv": lambda w: pyg.SGConv(w, w, K=2),
    "SSGConv": lambda w: pyg.SSGConv(w, w, alpha=0.1, K=2),
    "SuperGATConv": lambda w: pyg.SuperGATConv(w, w // 2, heads=2),
    "TAGConv": lambda w: pyg.TAGConv(w, w),
    "TransformerConv": lambda w: pyg.TransformerConv(w, w // 2, heads=2),
}
FEATURED: dict[str, Callable[[int], nn.Module]] = {
    "GATv2Conv edges": lambda w: pyg.GATv2Conv(w, w // 2, heads=2, **E),
    "GENConv": lambda w: pyg.GENConv(w, w, **E),
    "GINEConv": lambda w: pyg.GINEConv(mlp(w, w), **E),
    "GeneralConv": lambda w: pyg.GeneralConv(w, w, in_edge_channels=ARC_WIDTH),
    "NNConv": lambda w: pyg.NNConv(w, w, mlp(ARC_WIDTH, w * w)),
    "ResGatedGraphConv": lambda w: pyg.ResGatedGraphConv(w, w, **E),
    "TransformerConv edges": lambda w: pyg.TransformerConv(w, w // 2, heads=2, **E),
}
LAYERS = PLAIN | FEATURED
