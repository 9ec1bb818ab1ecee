"""Models that draw random numbers, pool over the graph, or hold rows in other dimensions than the first."""

import copy

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn import aggr
from torch_geometric.utils import mask_feature, scatter


class Base(nn.Module):
    """Two layers, with something between them."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first, self.second = gnn.GCNConv(in_channels, 8), gnn.SAGEConv(8, out_channels)

    def between(self, h, x, edge_index):
        return h

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        return self.second(self.between(h, x, edge_index), edge_index)


# Random numbers


class RandomFeatures(nn.Module):
    """Random features beside the given ones (rGIN)."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.GINConv(gnn.MLP([in_channels + 6, 8, out_channels]))

    def forward(self, x, edge_index):
        drawn = torch.randint(0, 100, (x.size(0), 2), device=x.device) / 100
        more = torch.cat([drawn.to(x.dtype), torch.randn(x.shape[0], 4, dtype=x.dtype)], dim=1)
        return self.conv(torch.cat([x, more], dim=1), edge_index)


class Variational(Base):
    """The encoder of a VGAE."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.mu, self.logstd = nn.Linear(8, 8), nn.Linear(8, 8)

    def between(self, h, x, edge_index):
        mu, logstd = self.mu(h), self.logstd(h).clamp(max=10)
        return mu + torch.randn_like(logstd) * torch.exp(logstd) if self.training else mu


class VariationalByNormal(Variational):
    def between(self, h, x, edge_index):
        return torch.normal(self.mu(h), 1.0).detach() + h * torch.normal(0.0, 0.1, size=(h.size(0), 1)).to(h.dtype)


class GumbelEdges(Base):
    """Edges are kept or left out by a straight-through Gumbel softmax of a score."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.score, self.second = nn.Linear(16, 2), gnn.GraphConv(8, out_channels)

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        score = self.score(torch.cat([h[edge_index[0]], h[edge_index[1]]], dim=-1))
        kept = F.gumbel_softmax(score, tau=0.5, hard=True, dim=-1)[:, 0]
        return self.second(h, edge_index, kept)


class Bernoulli(Base):
    """Concrete masks of nodes and of messages."""

    def between(self, h, x, edge_index):
        keep = torch.bernoulli(torch.full((h.size(0), 1), 0.7, dtype=h.dtype))
        noise = torch.empty_like(h).uniform_(-0.1, 0.1) + torch.empty_like(h).exponential_(4.0)
        return (h + noise) * keep + torch.sigmoid(h).bernoulli().detach()


class Augmented(Base):
    """PyG's mask_feature, by columns."""

    def forward(self, x, edge_index):
        x, _ = mask_feature(x, p=0.3, mode="col", training=self.training)
        return super().forward(x, edge_index)


class AugmentedRows(Base):
    def forward(self, x, edge_index):
        x, _ = mask_feature(x, p=0.3, mode="row", training=self.training)
        x, _ = mask_feature(x, p=0.2, mode="all", training=self.training)
        return super().forward(x, edge_index)


class StochasticDepth(Base):
    """Whole layers are left out at random: one number for all nodes."""

    def between(self, h, x, edge_index):
        if self.training and torch.rand(1).item() < 0.5:
            return h
        return h * 2 + torch.rand((), dtype=h.dtype)


class DropMessages(Base):
    class Layer(gnn.MessagePassing):
        def __init__(self, cin, cout):
            super().__init__(aggr="mean")
            self.lin = nn.Linear(cin, cout)

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j):
            noise = 1 + 0.1 * torch.randn_like(x_j) if self.training else 1
            return F.dropout(x_j, 0.4, self.training) * noise

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.first = self.Layer(in_channels, 8)


class Shuffled(Base):
    """Columns in a random order."""

    def between(self, h, x, edge_index):
        return h[:, torch.randperm(h.size(1))]


class NegativeByHand(Base):
    """Random pairs of nodes."""

    def between(self, h, x, edge_index):
        other = torch.randint(0, h.size(0), (h.size(0),))
        return h - 0.1 * h[other]


class Sampled(Base):
    """A hard choice by torch.distributions."""

    def between(self, h, x, edge_index):
        chosen = torch.distributions.Categorical(logits=h).sample()
        return h * F.one_hot(chosen, h.size(1))


# Pools over the graph, which every node reads


class Pooled(Base):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.attention = aggr.AttentionalAggregation(nn.Linear(8, 1), nn.Linear(8, 8))
        self.lin = nn.Linear(40, 8)

    def between(self, h, x, edge_index):
        batch = torch.zeros(h.size(0), dtype=torch.long)
        pools = [gnn.global_max_pool(h, batch), gnn.global_mean_pool(h, batch), gnn.global_add_pool(h, batch)]
        pools += [self.attention(h, batch), -gnn.global_max_pool(-h, batch)]
        return h + self.lin(torch.cat(pools, dim=-1))[batch]


class SetToSet(Base):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.pool, self.lin = aggr.Set2Set(8, processing_steps=2), nn.Linear(16, 8)

    def between(self, h, x, edge_index):
        return h + self.lin(self.pool(h, dim=0))


class PooledByKind(nn.Module):
    """Each node reads the largest values among the nodes of its kind."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.GCNConv(3 * in_channels, out_channels)

    def forward(self, x, edge_index, node_kind):
        top = scatter(x, node_kind, dim=0, dim_size=5, reduce="max")
        low = scatter(x, node_kind, dim=0, dim_size=5, reduce="min")
        return self.conv(torch.cat([x, top[node_kind], low[node_kind]], dim=1), edge_index)


class SortPooled(Base):
    """The k largest nodes of the graph."""

    def between(self, h, x, edge_index):
        return h + aggr.SortAggregation(k=3)(h, torch.zeros(h.size(0), dtype=torch.long)).view(3, -1).mean(0)


# Rows in other dimensions, other numbers


class Temporal(nn.Module):
    """Features [nodes, steps, width] and a static graph: layers over [steps, nodes, width], then a GRU per node."""

    def __init__(self, in_channels, out_channels, steps=3):
        super().__init__()
        self.steps, self.conv = steps, gnn.GCNConv(in_channels // steps, 8)
        self.gru, self.lin = nn.GRU(8, 8, batch_first=True), nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        x = x.view(x.size(0), self.steps, -1).transpose(0, 1)
        h = self.conv(x, edge_index).relu().transpose(0, 1)
        return self.lin(self.gru(h)[1][-1])


class TemporalConvs(nn.Module):
    """STGCN's gates: a 1D convolution over time around a graph convolution of each step."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.before, self.after = nn.Conv1d(1, 8, 3, padding=1), nn.Conv1d(8, 4, 3)
        self.conv, self.lin = gnn.ChebConv(8, 8, K=2), nn.Linear(4 * (in_channels - 2), out_channels)

    def forward(self, x, edge_index):
        h = F.relu(self.before(x.unsqueeze(1)))
        h = torch.stack([self.conv(one, edge_index) for one in h.unbind(dim=2)], dim=2)
        return self.lin(torch.sigmoid(self.after(h)).flatten(1))


class MagNet(nn.Module):
    """Complex numbers: the phase of an edge is its direction."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.real, self.imag = nn.Linear(in_channels, 8), nn.Linear(in_channels, 8)
        self.lin = nn.Linear(16, out_channels)

    def forward(self, x, edge_index):
        row, col = edge_index
        z = torch.complex(self.real(x), self.imag(x))
        turned = z[row] * torch.polar(torch.ones(row.size(0), 1, dtype=x.dtype), torch.full((1, 1), 0.5, dtype=x.dtype))
        z = torch.zeros_like(z).index_add(0, col, turned)
        return self.lin(torch.cat([z.real, z.imag], dim=-1).tanh())


class Teacher(Base):
    """A slow copy of the first layer follows it (BGRL)."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.slow = copy.deepcopy(self.first).requires_grad_(False)

    def forward(self, x, edge_index):
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.first.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
        return super().forward(x, edge_index) + self.slow(x, edge_index)[:, :4]


class Multiplied(Base):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.second = gnn.SAGEConv(8, out_channels, aggr="mul")


class ManyOptionals(Base):
    def forward(self, x, edge_index, edge_weight=None, edge_attr=None, batch=None, *, return_hidden=False):
        h = self.first(x, edge_index, edge_weight).relu()
        out = self.second(h, edge_index)
        return (out, h) if return_hidden else out


class Heads(Base):
    """A list of outputs, the logits first."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.heads = nn.ModuleList(nn.Linear(8, width) for width in (out_channels, 1))

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).relu()
        return [head(h) for head in self.heads]


class UniqueEdges(Base):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index.unique(dim=1))


class OnCPU(Base):
    """Values through NumPy."""

    def between(self, h, x, edge_index):
        return h * torch.from_numpy(x.detach().cpu().numpy().std(axis=0, keepdims=True).mean(keepdims=True))


class Saliency(Base):
    """Gradients with respect to the features, inside of forward."""

    def between(self, h, x, edge_index):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(self.first(x, edge_index).sum(), x)
        return h + grad.abs().mean(dim=1, keepdim=True)


class DenseAttention(Base):
    """nn.MultiheadAttention with all nodes as one sequence."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.att = nn.MultiheadAttention(8, 2, batch_first=True)

    def between(self, h, x, edge_index):
        return h + self.att(h[None], h[None], h[None], need_weights=False)[0][0]
