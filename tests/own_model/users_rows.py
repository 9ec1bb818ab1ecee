"""What is computed row by row, or over all nodes, between the layers."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.utils import (
    degree,
)  # fmt: skip

from tests.own_model.users_layers import Stack


class LSTMOverLayers(nn.Module):
    """A bidirectional LSTM over each node's layers, and attention over them (JK-Net written out)."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc = nn.Linear(in_channels, 8)
        self.convs = nn.ModuleList(gnn.GCNConv(8, 8) for _ in range(3))
        self.lstm, self.att = nn.LSTM(8, 6, bidirectional=True, batch_first=True), nn.Linear(12, 1)
        self.lin = nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        hs = [self.enc(x)]
        for conv in self.convs:
            hs.append(conv(hs[-1], edge_index).relu())
        stacked = torch.stack(hs, dim=1)
        out, _ = self.lstm(stacked)
        weight = self.att(out).squeeze(-1).softmax(dim=-1)
        return self.lin((stacked * weight.unsqueeze(-1)).sum(dim=1))


class AttentionOverHops(nn.Module):
    """nn.MultiheadAttention over the hops of each node (NAGphormer)."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.prop = nn.Linear(in_channels, 8), gnn.SimpleConv("mean")
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder, self.lin = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        hops = [self.enc(x)]
        for _ in range(3):
            hops.append(self.prop(hops[-1], edge_index))
        return self.lin(self.encoder(torch.stack(hops, dim=1))[:, 0])


class ConvOverHops(nn.Module):
    """A 1D convolution over the hops of each node."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.prop, self.conv = gnn.SimpleConv("mean"), nn.Conv1d(in_channels, 8, kernel_size=3)
        self.lin = nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        hops = [x]
        for _ in range(2):
            hops.append(self.prop(hops[-1], edge_index))
        return self.lin(self.conv(torch.stack(hops, dim=-1)).squeeze(-1).relu())


class PooledVirtualNode(nn.Module):
    """OGB's virtual node: global_add_pool, an MLP with batch norm over the graph's single row."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.conv1, self.conv2 = nn.Linear(in_channels, 8), gnn.GCNConv(8, 8), gnn.GCNConv(8, out_channels)
        self.embedding = nn.Embedding(1, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x, edge_index):
        batch = torch.zeros(x.size(0), dtype=torch.long)
        virtual = self.embedding(torch.zeros(1, dtype=torch.long))
        h = self.enc(x) + virtual[batch]
        virtual = virtual + self.mlp(gnn.global_add_pool(h, batch) + virtual)
        h = self.conv1(h, edge_index).relu() + virtual[batch]
        return self.conv2(h, edge_index)


class Prototypes(nn.Module):
    """Distances to learned centres, and to the means of the classes of training nodes."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv, self.centres = gnn.GCNConv(in_channels, 8), nn.Parameter(torch.randn(out_channels, 8))
        self.classes = out_channels

    def forward(self, x, edge_index, y, train_mask):
        h = self.conv(x, edge_index)
        means = torch.stack([h[train_mask & (y == c)].mean(0) for c in range(self.classes)])
        return -torch.cdist(h, self.centres) - torch.cdist(h, means).square()


class MixtureOfExperts(nn.Module):
    """The two best of three experts for each node."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.gate = nn.Linear(in_channels, 3)
        self.experts = nn.ModuleList([
            gnn.GCNConv(in_channels, out_channels), gnn.SAGEConv(in_channels, out_channels),
            gnn.GATConv(in_channels, out_channels),
        ])  # fmt: skip

    def forward(self, x, edge_index):
        top, chosen = self.gate(x).topk(2, dim=-1)
        weight = torch.zeros(x.size(0), 3, dtype=x.dtype).scatter(1, chosen, top.softmax(-1))
        outs = torch.stack([expert(x, edge_index) for expert in self.experts], dim=1)
        return (weight.unsqueeze(-1) * outs).sum(1)


class RegularisedByEntropy(Stack):
    """Keeps a figure of the last pass as an attribute."""

    def forward(self, x, edge_index):
        out = super().forward(x, edge_index)
        self.entropy = -(out.softmax(-1) * out.log_softmax(-1)).sum(-1).mean().item()
        return out


class Bilinear(nn.Module):
    """Edges scored by a bilinear form, messages by einsum."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.bilinear, self.lin = nn.Bilinear(in_channels, in_channels, 2), nn.Linear(in_channels, 2 * out_channels)
        self.classes = out_channels

    def forward(self, x, edge_index):
        src, dst = edge_index
        weight = torch.sigmoid(self.bilinear(x[src], x[dst]))
        rows = self.lin(x).view(-1, 2, self.classes)
        messages = torch.einsum("eh,ehc->ec", weight, rows[src])
        return torch.zeros(x.size(0), self.classes, dtype=x.dtype).scatter_add_(
            0, dst.unsqueeze(-1).expand_as(messages), messages
        )


class MaskedTraining(Stack):
    """Scores of the training rows alone are made sharper; a boolean index assigns them."""

    def forward(self, x, edge_index, train_mask):
        out = super().forward(x, edge_index)
        out = out.clone()
        out[train_mask] = out[train_mask] * 2.0
        return torch.where(train_mask.unsqueeze(-1), out, out.detach())


class FeatureMask(Stack):
    """One mask of columns for all nodes (GRACE), drawn anew in each step."""

    def forward(self, x, edge_index):
        drop = torch.empty((x.size(1),), dtype=torch.float32).uniform_(0, 1) < 0.3
        x = x.clone()
        x[:, drop] = 0
        return super().forward(x, edge_index)


class Noise(Stack):
    """Gaussian noise on the features in training."""

    def forward(self, x, edge_index):
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return super().forward(x, edge_index)


class RunningStatistics(Stack):
    """A running mean of degrees, used in evaluation."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x, edge_index):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * degree(edge_index[1], x.size(0), dtype=x.dtype).mean())
            self.steps += 1
        return super().forward(x, edge_index) / (1 + self.mean)


class Scripted(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv, self.lin = gnn.GCNConv(in_channels, 8), torch.jit.script(nn.Linear(8, out_channels))

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index).relu())


class Compiled(Stack):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.conv1 = torch.compile(self.conv1, backend="eager")


class Wrapped(nn.Module):
    """A wrapper that passes everything through, and a property that makes the layers."""

    class Inner(nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.conv = conv

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("conv"), name)

        def forward(self, *args, **kwargs):
            return self.conv(*args, **kwargs)

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.stack = [self.Inner(gnn.SAGEConv(in_channels, 8)), self.Inner(gnn.SAGEConv(8, out_channels))]
        for i, layer in enumerate(self.stack):
            self.add_module(f"layer{i}", layer)

    def forward(self, x, edge_index):
        for i, layer in enumerate(self.stack):
            x = layer(x=x, edge_index=edge_index)
            x = x.relu() if i + 1 < len(self.stack) else x
        return x


class Splits(nn.Module):
    """chunk, split, movedim, unflatten and friends along the columns."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin, self.conv = nn.Linear(in_channels, 12), gnn.GCNConv(6, 6)
        self.out = nn.Linear(6, out_channels)

    def forward(self, x, edge_index):
        a, b = self.lin(x).chunk(2, dim=-1)
        g = F.glu(torch.cat([a, b], dim=-1), dim=-1)
        h = self.conv(g, edge_index).unflatten(1, (2, 3)).movedim(1, 2).flatten(1)
        first, rest = h.split([2, 4], dim=1)
        return self.out(torch.hstack([rest, first]))


class Counted(Stack):
    """Counts its calls and warms up its residual with them."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.calls, self.lin = 0, nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        if self.training:
            self.calls += 1
        return super().forward(x, edge_index) + min(1.0, self.calls / 3) * self.lin(x)
