"""Layers that users write with MessagePassing, aggregations, norms."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn import aggr
from torch_geometric.utils import (
    scatter,
    softmax,
)  # fmt: skip


class Stack(nn.Module):
    """Two layers of one kind, with a ReLU between them."""

    layer = gnn.GCNConv

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = self.layer(in_channels, 16), self.layer(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class UpdateLayer(gnn.MessagePassing):
    """`update` reads the node's own row."""

    def __init__(self, cin, cout):
        super().__init__(aggr="mean")
        self.msg, self.upd = nn.Linear(2 * cin, cout), nn.Linear(cin + cout, cout)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.msg(torch.cat([x_i, x_j - x_i], dim=-1)).relu()

    def update(self, aggr_out, x):
        return self.upd(torch.cat([x, aggr_out], dim=-1))


class Updated(Stack):
    layer = UpdateLayer


class EdgeUpdateLayer(gnn.MessagePassing):
    def __init__(self, cin, cout):
        super().__init__(node_dim=0)
        self.lin, self.att = nn.Linear(cin, cout), nn.Parameter(torch.randn(1, 2 * cout) * 0.3)

    def forward(self, x, edge_index):
        h = self.lin(x)
        alpha = self.edge_updater(edge_index, h=h)
        return self.propagate(edge_index, h=h, alpha=alpha)

    def edge_update(self, h_i, h_j, index, ptr, size_i):
        score = (torch.cat([h_i, h_j], dim=-1) * self.att).sum(-1)
        return softmax(F.leaky_relu(score, 0.2), index, ptr, size_i)

    def message(self, h_j, alpha):
        return alpha.unsqueeze(-1) * h_j


class EdgeUpdated(Stack):
    layer = EdgeUpdateLayer


class FusedLayer(gnn.MessagePassing):
    """message_and_aggregate for sparse matrices, message for edges."""

    def __init__(self, cin, cout):
        super().__init__(aggr="add")
        self.lin = nn.Linear(cin, cout)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j):
        return x_j

    def message_and_aggregate(self, adj_t, x):
        return adj_t.matmul(x, reduce=self.aggr)


class Fused(Stack):
    layer = FusedLayer


class AggregateLayer(gnn.MessagePassing):
    """Overrides `aggregate`."""

    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(2 * cin, cout)

    def forward(self, x, edge_index):
        return self.lin(self.propagate(edge_index, x=x))

    def aggregate(self, inputs, index, dim_size):
        add = scatter(inputs, index, dim=self.node_dim, dim_size=dim_size, reduce="sum")
        top = scatter(inputs, index, dim=self.node_dim, dim_size=dim_size, reduce="max")
        return torch.cat([add, top], dim=-1)


class Aggregated(Stack):
    layer = AggregateLayer


class SeveralAggregations(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.SAGEConv(in_channels, 8, aggr=["mean", "max", "std"])
        self.conv2 = gnn.SAGEConv(8, 8, aggr=aggr.SoftmaxAggregation(learn=True))
        self.conv3 = gnn.SAGEConv(8, 8, aggr=aggr.PowerMeanAggregation(learn=True))
        self.conv4 = gnn.GraphConv(8, 8, aggr=aggr.MultiAggregation(["min", "var"], mode="sum"))
        self.conv5 = gnn.SAGEConv(8, out_channels, aggr="median")

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index).relu()
        x = self.conv3(x + 0.1, edge_index).relu()
        x = self.conv4(x, edge_index).relu()
        return self.conv5(x, edge_index)


class Scaled(nn.Module):
    """Degree scalers of a histogram that the constructor makes."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        deg = torch.tensor([1, 2, 5, 9, 9, 4, 2, 1])
        self.lin = nn.Linear(in_channels, 8)
        self.conv = gnn.GraphConv(8, 8, aggr=aggr.DegreeScalerAggregation(
            ["mean", "max"], ["identity", "amplification", "attenuation", "linear"], deg))  # fmt: skip
        self.conv.lin_rel = nn.Linear(64, out_channels)
        self.conv.lin_root = nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        return self.conv(self.lin(x).relu(), edge_index)


class OtherAggregations(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.SimpleConv(aggr=aggr.AttentionalAggregation(nn.Linear(in_channels, 1)))
        self.conv2 = gnn.SimpleConv(aggr=aggr.DeepSetsAggregation(nn.Linear(in_channels, 8), nn.Linear(8, 8)))
        self.conv3 = gnn.SimpleConv(aggr=aggr.VariancePreservingAggregation())
        self.conv4 = gnn.SimpleConv(aggr=aggr.QuantileAggregation([0.25, 0.75]))
        self.lin = nn.Linear(16, out_channels)

    def forward(self, x, edge_index):
        x = self.conv2(self.conv1(x, edge_index), edge_index).relu()
        return self.lin(self.conv4(self.conv3(x, edge_index), edge_index))


class BipartiteArguments(nn.Module):
    """A pair of rows for sources and targets, and the size spelled out."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.SAGEConv((in_channels, in_channels), 16)
        self.conv2 = gnn.GATv2Conv((16, 16), out_channels)

    def forward(self, x, edge_index):
        x = self.conv1((x, x), edge_index, size=(x.size(0), x.size(0))).relu()
        return self.conv2((x, x), edge_index)


class WithAttentionWeights(nn.Module):
    """The attention weights of the edges are returned, or used again."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.GATConv(in_channels, 8, heads=2), gnn.GraphConv(16, out_channels)

    def forward(self, x, edge_index):
        x, (index, alpha) = self.conv1(x, edge_index, return_attention_weights=True)
        return self.conv2(x.relu(), index, alpha.mean(dim=1))


class MetaLayered(nn.Module):
    """Edges, nodes and the graph are updated in turn (PyG's MetaLayer)."""

    class EdgeModel(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2 * width + 3 + 4, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, src, dst, edge_attr, u, batch):
            return self.net(torch.cat([src, dst, edge_attr, u[batch]], dim=1))

    class NodeModel(nn.Module):
        def __init__(self, width, out):
            super().__init__()
            self.one, self.two = nn.Linear(width + 3, 8), nn.Linear(width + 8 + 4, out)

        def forward(self, x, edge_index, edge_attr, u, batch):
            row, col = edge_index
            out = self.one(torch.cat([x[row], edge_attr], dim=1))
            out = scatter(out, col, dim=0, dim_size=x.size(0), reduce="mean")
            return self.two(torch.cat([x, out, u[batch]], dim=1))

    class GlobalModel(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.net = nn.Linear(width + 4, 4)

        def forward(self, x, edge_index, edge_attr, u, batch):
            return self.net(torch.cat([u, scatter(x, batch, dim=0, dim_size=1, reduce="mean")], dim=1))

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.one = gnn.MetaLayer(self.EdgeModel(in_channels), self.NodeModel(in_channels, 8), self.GlobalModel(8))
        self.two = gnn.MetaLayer(self.EdgeModel(8), self.NodeModel(8, out_channels), None)
        self.u = nn.Parameter(torch.zeros(1, 4))

    def forward(self, x, edge_index, edge_attr):
        batch = torch.zeros(x.size(0), dtype=torch.long)
        edge_batch = torch.zeros(edge_index.size(1), dtype=torch.long)
        row, col = edge_index
        e = self.one.edge_model(x[row], x[col], edge_attr, self.u, edge_batch)
        x = self.one.node_model(x, edge_index, e, self.u, batch)
        u = self.one.global_model(x, edge_index, e, self.u, batch)
        return self.two.node_model(x, edge_index, e, u, batch)


class Norms(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.convs = nn.ModuleList([gnn.GraphConv(in_channels, 8), *(gnn.GraphConv(8, 8) for _ in range(5))])
        self.norms = nn.ModuleList([
            gnn.DiffGroupNorm(8, groups=3), gnn.MeanSubtractionNorm(), gnn.GraphSizeNorm(), gnn.BatchNorm(8),
            gnn.LayerNorm(8), gnn.LayerNorm(8, mode="node"),
        ])  # fmt: skip
        self.message, self.lin = gnn.MessageNorm(learn_scale=True), nn.Linear(8, out_channels)
        self.group = nn.GroupNorm(2, 8)

    def forward(self, x, edge_index):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = norm(conv(x, edge_index))
            x = h if x.size(1) != 8 else x + self.message(x, h)
        return self.lin(self.group(x).relu())


class InstanceNormed(Stack):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.norm = gnn.InstanceNorm(16)

    def forward(self, x, edge_index):
        return self.conv2(self.norm(self.conv1(x, edge_index)), edge_index)
