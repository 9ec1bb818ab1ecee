"""Hops and normalised edges that are kept, labels that are spread, dropped nodes; models of many layers."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    scatter,
)  # fmt: skip


class CachedNorm(nn.Module):
    """The normalised edges are made in the first pass and kept as an attribute."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin1, self.lin2, self.norm = nn.Linear(in_channels, 16), nn.Linear(16, out_channels), None
        self.prop = gnn.SimpleConv(aggr="sum")

    def forward(self, x, edge_index):
        if self.norm is None:
            self.norm = gcn_norm(edge_index, None, x.size(0), dtype=x.dtype)
        index, weight = self.norm
        x = self.prop(self.lin1(x), index, weight).relu()
        return self.prop(self.lin2(x), index, weight)


class CachedConvs(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.GCNConv(in_channels, 16, cached=True, normalize=True)
        self.conv2 = gnn.GCNConv(16, out_channels, cached=True)

    def forward(self, x, edge_index, edge_weight=None):
        x = self.conv1(x, edge_index, edge_weight).relu()
        return self.conv2(x, edge_index, edge_weight)


class SIGN(nn.Module):
    """Hops of the features that were computed before training, as fields of the graph."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(in_channels, 16), nn.Linear(2, 16)])
        self.out = nn.Linear(32, out_channels)

    def forward(self, x, edge_index, pe):
        hs = [F.dropout(lin(h).relu(), 0.0, self.training) for lin, h in zip(self.lins, (x, pe), strict=True)]
        return self.out(torch.cat(hs, dim=-1)).log_softmax(dim=-1)


class SIGNWithin(nn.Module):
    """The hops are computed in the first forward, under no_grad, and kept."""

    def __init__(self, in_channels, out_channels, hops=2):
        super().__init__()
        self.hops, self.xs = hops, None
        self.lins = nn.ModuleList(nn.Linear(in_channels, 8) for _ in range(hops + 1))
        self.out = nn.Linear(8 * (hops + 1), out_channels)

    @torch.no_grad()
    def precompute(self, x, edge_index):
        index, weight = gcn_norm(edge_index, num_nodes=x.size(0), dtype=x.dtype)
        xs = [x]
        for _ in range(self.hops):
            xs.append(scatter(weight.view(-1, 1) * xs[-1][index[0]], index[1], 0, x.size(0), "sum"))
        return xs

    def forward(self, x, edge_index):
        if self.xs is None:
            self.xs = self.precompute(x, edge_index)
        return self.out(torch.cat([lin(h).relu() for lin, h in zip(self.lins, self.xs, strict=True)], dim=1))


class PMLPs(gnn.PMLP):
    """An MLP in training, a GCN in evaluation."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, 16, out_channels, num_layers=2)


class LabelReuse(nn.Module):
    """Correct and smooth, as a last layer of forward: residuals of the training nodes are spread."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.net = gnn.SAGEConv(in_channels, out_channels)
        self.post = gnn.CorrectAndSmooth(2, 0.8, 2, 0.7, autoscale=False, scale=0.5)

    def forward(self, x, edge_index, y, train_mask):
        out = self.net(x, edge_index)
        if self.training:
            return out
        soft = out.softmax(dim=-1)
        soft = self.post.correct(soft, y[train_mask], train_mask, edge_index)
        return self.post.smooth(soft, y[train_mask], train_mask, edge_index)


class CorrectScaled(LabelReuse):
    """With the scale of the paper: a mean over training nodes."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.post = gnn.CorrectAndSmooth(2, 0.8, 2, 0.7, autoscale=True)


class LabelsSpread(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.net, self.spread = gnn.GCNConv(in_channels, out_channels), gnn.LabelPropagation(num_layers=3, alpha=0.9)

    def forward(self, x, edge_index, y, train_mask):
        prior = self.spread(y, edge_index, mask=train_mask)
        return self.net(x, edge_index) + prior.to(x.dtype)


class LightGCN(nn.Module):
    def __init__(self, num_nodes, out_channels):
        super().__init__()
        self.embedding = nn.Embedding(num_nodes, 8)
        self.convs, self.lin = nn.ModuleList(gnn.LGConv() for _ in range(3)), nn.Linear(8, out_channels)
        self.register_buffer("alpha", torch.tensor([0.25] * 4))

    def forward(self, edge_index):
        x = self.embedding.weight
        out = x * self.alpha[0]
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            out = out + x * self.alpha[i + 1]
        return self.lin(out)


class GRAND(nn.Module):
    """Whole rows are dropped, then a mean of powers; several heads share the weights."""

    def __init__(self, in_channels, out_channels, order=3):
        super().__init__()
        self.order, self.drop = order, nn.Dropout(0.5)
        self.mlp = gnn.MLP([in_channels, 16, out_channels], norm=None)

    def forward(self, x, edge_index):
        n = x.size(0)
        keep = self.drop(torch.ones(n, 1, dtype=x.dtype))
        x = keep * x
        index, weight = gcn_norm(edge_index, num_nodes=n, dtype=x.dtype)
        adj = torch.sparse_coo_tensor(index.flip(0), weight, (n, n))
        y = x
        for _ in range(self.order):
            x = torch.spmm(adj, x)
            y = y + x
        return self.mlp(y / (self.order + 1))


class DropNode(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.GCNConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        from torch_geometric.utils import dropout_node

        edge_index, _, mask = dropout_node(edge_index, p=0.3, num_nodes=x.size(0), training=self.training)
        return self.conv(x * mask.view(-1, 1).to(x.dtype), edge_index)


# Depth


class DeeperGCN(nn.Module):
    """examples/ogbn_proteins_deepgcn.py, res+ with checkpoints off."""

    def __init__(self, in_channels, out_channels, hidden=16, num_layers=3, block="res+"):
        super().__init__()
        self.node_encoder, self.edge_encoder = nn.Linear(in_channels, hidden), nn.Linear(3, hidden)
        self.layers = nn.ModuleList()
        for i in range(1, num_layers + 1):
            conv = gnn.GENConv(hidden, hidden, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer")
            norm, act = nn.LayerNorm(hidden, elementwise_affine=True), nn.ReLU(inplace=True)
            self.layers.append(gnn.DeepGCNLayer(conv, norm, act, block=block, dropout=0.0, ckpt_grad=i % 3 == 4))
        self.lin = nn.Linear(hidden, out_channels)

    def forward(self, x, edge_index, edge_attr):
        x = self.node_encoder(x)
        edge_attr = self.edge_encoder(edge_attr)
        x = self.layers[0].conv(x, edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))
        return self.lin(F.dropout(x, p=0.0, training=self.training))


class DeeperCheckpointed(DeeperGCN):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        for layer in self.layers:
            layer.ckpt_grad = True


class DeeperDense(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc = nn.Linear(in_channels, 8)
        layer1 = gnn.DeepGCNLayer(gnn.SAGEConv(8, 8), gnn.BatchNorm(8), nn.LeakyReLU(), block="dense")
        layer2 = gnn.DeepGCNLayer(gnn.GraphConv(16, 8), gnn.LayerNorm(8, mode="node"), nn.ELU(), block="plain")
        self.layers, self.lin = nn.ModuleList([layer1, layer2]), nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        x = self.enc(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.lin(x)


class GNNBlock(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(in_channels), gnn.SAGEConv(in_channels, out_channels)

    def reset_parameters(self):
        self.norm.reset_parameters()
        self.conv.reset_parameters()

    def forward(self, x, edge_index, dropout_mask=None):
        x = self.norm(x).relu()
        if self.training and dropout_mask is not None:
            x = x * dropout_mask
        return self.conv(x, edge_index)


class RevGNN(nn.Module):
    """examples/rev_gnn.py, with one dropout mask for all layers."""

    def __init__(self, in_channels, out_channels, hidden=16, num_layers=2, num_groups=2):
        super().__init__()
        self.lin1, self.lin2, self.norm = nn.Linear(in_channels, hidden), nn.Linear(hidden, out_channels), None
        self.norm = nn.LayerNorm(hidden)
        self.convs = nn.ModuleList()
        for _ in range(num_layers):
            conv = GNNBlock(hidden // num_groups, hidden // num_groups)
            self.convs.append(gnn.GroupAddRev(conv, num_groups=num_groups))

    def forward(self, x, edge_index):
        x = self.lin1(x)
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.lin2(self.norm(x).relu())


class RevGNNMasked(RevGNN):
    def forward(self, x, edge_index):
        x = self.lin1(x)
        mask = torch.zeros_like(x).bernoulli_(0.5) / 0.5
        mask = mask.requires_grad_(False)
        for conv in self.convs:
            x = conv(x, edge_index, mask)
        return self.lin2(self.norm(x).relu())


class GRUOverDepth(nn.Module):
    """Ordered gates: a GRU cell updates a node from its neighbours' mean."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.cell, self.dec = nn.Linear(in_channels, 16), nn.GRUCell(16, 16), nn.Linear(16, out_channels)
        self.mean = gnn.SimpleConv("mean")

    def forward(self, x, edge_index):
        h = self.enc(x).tanh()
        for _ in range(3):
            h = self.cell(self.mean(h, edge_index), h)
        return self.dec(h)


class DNA(nn.Module):
    """examples/dna.py: attention over the layers of each node."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)
        self.convs = nn.ModuleList(gnn.DNAConv(16, 2, 1) for _ in range(2))

    def forward(self, x, edge_index):
        x = torch.relu(self.lin1(x))
        x_all = x.view(-1, 1, 16)
        for conv in self.convs:
            x = torch.relu(conv(x_all, edge_index))
            x = x.view(-1, 1, 16)
            x_all = torch.cat([x_all, x], dim=1)
        return torch.log_softmax(self.lin2(x_all[:, -1]), dim=1)
