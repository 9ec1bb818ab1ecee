"""Propagation over several hops: learnable coefficients, signed and cached weights, powers of the graph."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_self_loops,
    degree,
    remove_self_loops,
    scatter,
)  # fmt: skip


class Prop(gnn.MessagePassing):
    """DAGNN's propagation: a gate weighs the hops of each node."""

    def __init__(self, num_classes, K):
        super().__init__(aggr="add")
        self.K, self.proj = K, nn.Linear(num_classes, 1)

    def forward(self, x, edge_index, edge_weight=None):
        edge_index, norm = gcn_norm(edge_index, edge_weight, x.size(0), dtype=x.dtype)
        preds = [x]
        for _ in range(self.K):
            x = self.propagate(edge_index, x=x, norm=norm)
            preds.append(x)
        pps = torch.stack(preds, dim=1)
        retain_score = torch.sigmoid(self.proj(pps).squeeze())
        return torch.matmul(retain_score.unsqueeze(1), pps).squeeze()

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class DAGNN(nn.Module):
    def __init__(self, in_channels, out_channels, K=4):
        super().__init__()
        self.lin1, self.lin2, self.prop = nn.Linear(in_channels, 16), nn.Linear(16, out_channels), Prop(out_channels, K)

    def forward(self, data):
        x, edge_index = data.x, data.edge_index
        x = self.lin2(F.relu(self.lin1(x)))
        return F.log_softmax(self.prop(x, edge_index), dim=1)


class GPRProp(gnn.MessagePassing):
    def __init__(self, K, alpha):
        super().__init__(aggr="add")
        self.K = K
        gamma = alpha * (1 - alpha) ** torch.arange(K + 1)
        gamma[-1] = (1 - alpha) ** K
        self.temp = nn.Parameter(gamma)

    def forward(self, x, edge_index, edge_weight=None):
        edge_index, norm = gcn_norm(edge_index, edge_weight, num_nodes=x.size(0), dtype=x.dtype)
        hidden = x * self.temp[0]
        for k in range(self.K):
            x = self.propagate(edge_index, x=x, norm=norm)
            gamma = self.temp[k + 1]
            hidden = hidden + gamma * x
        return hidden

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j

    def __repr__(self):
        return f"{self.__class__.__name__}(K={self.K}, temp={self.temp})"


class GPRGNN(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)
        self.prop1, self.dprate, self.dropout = GPRProp(4, 0.1), 0.0, 0.0

    def forward(self, data):
        x, edge_index = data.x, data.edge_index
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = self.lin2(F.relu(self.lin1(x)))
        if self.dprate == 0.0:
            x = self.prop1(x, edge_index)
        else:
            x = self.prop1(F.dropout(x, p=self.dprate, training=self.training), edge_index)
        return F.log_softmax(x, dim=1)


class BernProp(gnn.MessagePassing):
    """BernNet: polynomials of the Laplacian."""

    def __init__(self, K):
        super().__init__(aggr="add")
        self.K, self.temp = K, nn.Parameter(torch.ones(K + 1))

    def forward(self, x, edge_index):
        from math import comb

        from torch_geometric.utils import get_laplacian

        temp = F.relu(self.temp)
        index1, norm1 = get_laplacian(edge_index, None, normalization="sym", dtype=x.dtype, num_nodes=x.size(0))
        index2, norm2 = add_self_loops(index1, -norm1, fill_value=2.0, num_nodes=x.size(0))
        tmp = [x]
        for _ in range(self.K):
            x = self.propagate(index2, x=x, norm=norm2, size=None)
            tmp.append(x)
        out = (comb(self.K, 0) / 2**self.K) * temp[0] * tmp[self.K]
        for i in range(self.K):
            x = tmp[self.K - i - 1]
            for _ in range(i + 1):
                x = self.propagate(index1, x=x, norm=norm1, size=None)
            out = out + (comb(self.K, i + 1) / 2**self.K) * temp[i + 1] * x
        return out

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class BernNet(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin1, self.lin2, self.prop = nn.Linear(in_channels, 16), nn.Linear(16, out_channels), BernProp(2)

    def forward(self, x, edge_index):
        return self.prop(self.lin2(self.lin1(x).relu()), edge_index)


class MixHop(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.MixHopConv(in_channels, 8, powers=[0, 1, 2])
        self.norm = nn.BatchNorm1d(24)
        self.conv2 = gnn.MixHopConv(24, 8, powers=[0, 1, 2])
        self.lin = nn.Linear(24, out_channels)

    def forward(self, x, edge_index):
        return self.lin(self.conv2(self.norm(self.conv1(x, edge_index)), edge_index))


class H2GCN(nn.Module):
    """Ego, neighbours and neighbours of neighbours apart; the second hop is two products without self loops."""

    def __init__(self, in_channels, out_channels, hidden=8):
        super().__init__()
        self.embed = nn.Linear(in_channels, hidden)
        self.classify = nn.Linear(hidden * (1 + 2 + 4), out_channels)

    def forward(self, x, edge_index):
        n = x.size(0)
        edge_index, _ = remove_self_loops(edge_index)
        row, col = edge_index
        deg = degree(col, n, dtype=x.dtype).clamp(min=1)

        def one(h):
            return scatter(h[row], col, dim=0, dim_size=n, reduce="sum") / deg.view(-1, 1)

        hs = [F.relu(self.embed(x))]
        for _ in range(2):
            h1 = one(hs[-1])
            hs.append(torch.cat([h1, one(h1)], dim=1))
        return self.classify(torch.cat(hs, dim=1))


class H2GCNBySparse(nn.Module):
    """The two-hop adjacency as a product of sparse matrices."""

    def __init__(self, in_channels, out_channels, hidden=8):
        super().__init__()
        self.embed, self.classify = nn.Linear(in_channels, hidden), nn.Linear(2 * hidden, out_channels)

    def forward(self, x, edge_index):
        n = x.size(0)
        adj = torch.sparse_coo_tensor(edge_index, torch.ones(edge_index.size(1), dtype=x.dtype), (n, n))
        two = torch.sparse.mm(adj, adj)
        h = self.embed(x)
        return self.classify(torch.cat([torch.sparse.mm(adj, h), torch.sparse.mm(two, h)], dim=1))


class FALayer(gnn.MessagePassing):
    """FAGCN: signed attention, tanh of both ends."""

    def __init__(self, num_hidden):
        super().__init__(aggr="add")
        self.gate = nn.Linear(2 * num_hidden, 1)
        nn.init.xavier_normal_(self.gate.weight, gain=1.414)

    def forward(self, h, edge_index):
        row, col = edge_index
        norm_degree = degree(row, num_nodes=h.size(0), dtype=h.dtype).clamp(min=1).pow(-0.5)
        h2 = torch.cat([h[row], h[col]], dim=1)
        g = torch.tanh(self.gate(h2)).squeeze()
        norm = g * norm_degree[row] * norm_degree[col]
        return self.propagate(edge_index, size=(h.size(0), h.size(0)), x=h, norm=norm)

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j

    def update(self, aggr_out):
        return aggr_out


class FAGCN(nn.Module):
    def __init__(self, in_channels, out_channels, hidden=16, eps=0.3, layers=2):
        super().__init__()
        self.t1, self.t2, self.eps = nn.Linear(in_channels, hidden), nn.Linear(hidden, out_channels), eps
        self.layers = nn.ModuleList(FALayer(hidden) for _ in range(layers))

    def forward(self, x, edge_index):
        h = torch.relu(self.t1(x))
        raw = h
        for layer in self.layers:
            h = layer(h, edge_index)
            h = self.eps * raw + h
        return F.log_softmax(self.t2(h), 1)


class FAConvs(nn.Module):
    """PyG's layer of the same paper."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.dec = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)
        self.convs = nn.ModuleList([gnn.FAConv(16, eps=0.2), gnn.FAConv(16, eps=0.2)])

    def forward(self, x, edge_index):
        x = x0 = self.enc(x).relu()
        for conv in self.convs:
            x = conv(x, x0, edge_index)
        return self.dec(x)
