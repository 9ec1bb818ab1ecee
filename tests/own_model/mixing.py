"""Models that mix rows of different nodes: each is exact on any number of ranks, or refused by name."""

import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric import utils

import fullgraph as fg

WIDTH, HIDDEN, CLASSES = 6, 8, 4


class Base(nn.Module):
    """Two layers, with something between them and after them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, HIDDEN), pyg.GATv2Conv(HIDDEN, CLASSES)
        self.calls = 0
        self.made()

    def made(self):
        pass

    def between(self, h, x, edge_index):
        return h

    def after(self, h):
        return h

    def forward(self, x, edge_index):
        self.calls += self.training
        h = self.between(self.first(x, edge_index).tanh(), x, edge_index)
        return self.after(self.second(h, edge_index))


def between(function):
    return type(function.__name__, (Base,), {"between": function})


# Exact


@between
def centred(self, h, x, e):
    return h - h.mean(0)


@between
def centred_by_keyword(self, h, x, e):
    return h - torch.mean(input=h, axis=0, keepdims=True)


@between
def standardised(self, h, x, e):
    return (h - h.mean(dim=0)) / (h.std(dim=0) + 1e-3)


@between
def standardised_at_once(self, h, x, e):
    var, mean = torch.var_mean(h, dim=0, keepdim=True, correction=0)
    return (h - mean) / (var + 1e-3).sqrt()


@between
def scaled_columns(self, h, x, e):
    return F.normalize(h, dim=0) * 5 + h / (h.norm(dim=0) + 1) + h / torch.linalg.vector_norm(h)


@between
def divided_by_the_number_of_nodes(self, h, x, e):
    mean = h.sum(0) / x.size(0) + h.sum(0) * (1.0 / h.shape[0]) + h.sum() / h.numel()
    return h - mean * math.sqrt(x.size(0)) / math.log(x.shape[0]) + e.size(1) / x.size(0)


@between
def global_attention(self, h, x, e):
    weight = torch.softmax(h[:, :1], dim=0)
    other = F.log_softmax(h[:, 1:2], 0).exp()
    return h + (weight * h).sum(0) + (other * h).sum(0, keepdim=True)


@between
def log_sum(self, h, x, e):
    return h - torch.logsumexp(h, 0)


@between
def largest(self, h, x, e):
    return h - h.amax(0) + torch.amin(h, dim=0, keepdim=True) + h.max() + h.min()


@between
def largest_with_its_row(self, h, x, e):
    values, _ = h.max(0)
    return h - values + torch.min(h, 0).values


@between
def covariance(self, h, x, e):
    c = h - h.mean(0)
    return h @ (c.t() @ c) / x.size(0) + h @ torch.einsum("nd,nk->dk", h, c) / h.size(0)


@between
def clusters(self, h, x, e):
    """Means of clusters, as k-means has them, added to their members."""
    cluster = h[:, :3].argmax(1)
    one = F.one_hot(cluster, 3).to(h.dtype)
    means = h.new_zeros(3, HIDDEN).index_add(0, cluster, h) / (one.sum(0)[:, None] + 1)
    near = torch.cdist(h, means).argmin(1)
    return h + means[cluster] + means[near] + (one.t() @ h)[cluster] / h.size(0)


@between
def by_groups(self, h, x, e):
    group = (x[:, 0] > 0).long()
    summed = h.new_zeros(2, HIDDEN).scatter_add_(0, group[:, None].expand(-1, HIDDEN), h)
    pooled = pyg.global_add_pool(h, None) + utils.scatter(h, group, 0, 2, "sum").sum(0)
    return h + (summed[group] + pooled) / x.size(0)


@between
def pooled(self, h, x, e):
    return h - pyg.global_mean_pool(h, None) - pyg.global_max_pool(h, None)


class VirtualNode(Base):
    def made(self):
        self.virtual = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))

    def between(self, h, x, e):
        return h + self.virtual(fg.mean_over_nodes(h)) + fg.sum_over_nodes(h) / x.size(0) - fg.max_over_nodes(h)


@between
def masked_rows(self, h, x, e):
    chosen = x[:, 0] > 0
    out = torch.zeros_like(h)
    out[chosen] = h[chosen] * 2
    index = (~chosen).nonzero().view(-1)
    out = out.index_copy(0, index, h[index].sin())
    return out - h[chosen].mean(0) + torch.where(chosen[:, None], h, 0.5 * h)


@between
def chosen_columns(self, h, x, e):
    best = h.topk(3, dim=1).values.sum(1, keepdim=True)
    order = h.sort(dim=1).values.cumsum(1).flip(1)
    return order + best + h[torch.arange(h.size(0)), h.argmax(1)][:, None] + h.gather(1, h.argmax(1, keepdim=True))


@between
def views(self, h, x, e):
    heads = h.view(-1, 2, 4).transpose(1, 2).reshape(h.size(0), -1)
    flat = h.view(-1, 4).relu().view(h.shape[0], 2, 4).flatten(1)
    back = h.t().contiguous().t().unsqueeze(1).squeeze(1)
    return heads + flat + back + h.repeat_interleave(2, 0).view(-1, 2, HIDDEN).mean(1) + torch.stack([h, h]).sum(0)


class Sequences(Base):
    def made(self):
        self.lstm, self.cell = nn.LSTM(4, 4, batch_first=True), nn.GRUCell(HIDDEN, HIDDEN)
        self.conv = nn.Conv1d(2, 2, 3, padding=1)
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.bilinear = nn.LayerNorm(HIDDEN), nn.Bilinear(HIDDEN, HIDDEN, HIDDEN)

    def between(self, h, x, e):
        parts = h.view(-1, 2, 4)
        mixed = self.mix(parts, parts, parts, need_weights=False)[0]
        out = self.lstm(parts)[0].flatten(1) + self.conv(parts).flatten(1) + mixed.flatten(1)
        return self.norm(self.cell(out, h)) + self.bilinear(h, out)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.5 * grad


@between
def reversed_gradient(self, h, x, e):
    return Reversed.apply(h) + h - Reversed.apply(h).mean(0)


class MessageByHand(pyg.MessagePassing):
    def __init__(self):
        super().__init__(aggr="softmax")
        self.lin = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j, index, size_i):
        score = utils.softmax(self.lin(torch.cat([x_i, x_j - x_i], -1)).sum(-1), index, num_nodes=size_i)
        return score[:, None] * x_j


class OwnLayer(Base):
    def made(self):
        self.middle = MessageByHand()

    def between(self, h, x, edge_index):
        source, target = edge_index
        degree = utils.degree(target, x.size(0)).clamp(min=1)
        mean = h.new_zeros(len(h), HIDDEN).index_add(0, target, h[source]) / degree[:, None]
        return self.middle(h, edge_index) + mean - (degree[target] / e_mean(edge_index, x)).mean()


def e_mean(edge_index, x):
    return edge_index.shape[1] / x.shape[0]


class InEvaluationOnly(Base):
    def after(self, h):
        return h if self.training else h - h.mean(0)


class RunningMean(Base):
    def made(self):
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def between(self, h, x, e):
        if not self.training:
            return h - self.mean
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * h.mean(0))
        return h


class RunningMeanInTraining(Base):
    def made(self):
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def between(self, h, x, e):
        out = h - self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return out


class AfterWarmUp(Base):
    def between(self, h, x, e):
        return h - h.mean(0) if self.calls > 2 else h


class MemoryOfRows(Base):
    """An average of each node's own row over steps, in a plain attribute."""

    memory = None

    def between(self, h, x, e):
        if self.training:
            self.memory = h.detach() if self.memory is None else 0.5 * self.memory + 0.5 * h.detach()
        return h + 0.1 * self.memory


class ById(Base):
    def made(self):
        self.table = nn.Embedding(40, HIDDEN)

    def forward(self, x, edge_index, node_id):
        h = self.first(x, edge_index).tanh() + self.table(node_id)
        users = node_id < 20
        h = torch.where(users[:, None], h.sin(), h)
        return self.second(h, edge_index)


class Frozen(Base):
    def between(self, h, x, e):
        with torch.no_grad():
            return self.first(x, e).tanh() - h.mean(0)


@between
def len_of_rows(self, h, x, e):
    return h * (10 / len(x))


@between
def turned_edges(self, h, x, e):
    return h + utils.scatter(h[e[1]], e[0], 0, x.size(0))


@between
def adjacency(self, h, x, e):
    return (
        h
        + torch.sparse_coo_tensor(
            e, torch.ones(e.size(1), dtype=h.dtype), (x.size(0), x.size(0)), check_invariants=False
        )
        @ h
    )


class Positional(Base):
    def made(self):
        self.table = nn.Parameter(torch.ones(40, HIDDEN))

    def between(self, h, x, e):
        return h + self.table[: x.size(0)]


class PositionalEmbedding(Base):
    def made(self):
        self.table = nn.Embedding(40, HIDDEN)

    def between(self, h, x, e):
        return h + self.table(torch.arange(x.size(0)))


class MemoryBank(Base):
    def made(self):
        self.register_buffer("bank", torch.zeros(40, HIDDEN))

    def between(self, h, x, e):
        self.bank[: x.size(0)] = h.detach()
        return h + self.bank[: x.size(0)]


RIGHT = {
    kind.__name__: kind
    for kind in (
        Positional, PositionalEmbedding, MemoryBank,
        turned_edges, adjacency,
        centred, centred_by_keyword, standardised, standardised_at_once, scaled_columns, divided_by_the_number_of_nodes,
        global_attention, log_sum, largest, largest_with_its_row, covariance, clusters, by_groups, pooled, VirtualNode,
        masked_rows, chosen_columns, views, Sequences, reversed_gradient, OwnLayer, InEvaluationOnly, RunningMean,
        RunningMeanInTraining, AfterWarmUp, MemoryOfRows, ById, Frozen, len_of_rows,
    )
}  # fmt: skip


# Refused


@between
def rows_by_position(self, h, x, e):
    return torch.cat([h[:20], h[20:] * 2])


@between
def rows_by_position_beyond_a_rank(self, h, x, e):
    return h[:600]


@between
def first_row(self, h, x, e):
    return h - h[0]


@between
def rows_by_number(self, h, x, e):
    return h + h[torch.tensor([3, 1])].sum(0)


@between
def split_rows(self, h, x, e):
    return torch.cat(h.chunk(2, 0)[::-1])


@between
def rows_one_by_one(self, h, x, e):
    return torch.stack(list(h))


@between
def rows_in_a_loop(self, h, x, e):
    return torch.stack([h[k] for k in range(x.size(0))])


@between
def top_rows(self, h, x, e):
    return h + h.topk(2, dim=0).values.sum(0)


@between
def sorted_rows(self, h, x, e):
    return h + h.sort(0).values


@between
def ranked_rows(self, h, x, e):
    return h + h.argsort(dim=0).to(h.dtype)


@between
def running_sum(self, h, x, e):
    return h.cumsum(0)


@between
def median_row(self, h, x, e):
    return h - h.median(dim=0).values


@between
def quantile_row(self, h, x, e):
    return h - torch.quantile(h, 0.5, dim=0)


@between
def shuffled(self, h, x, e):
    return h[torch.randperm(x.size(0))]


@between
def shuffled_by_numpy(self, h, x, e):
    return h[torch.from_numpy(np.arange(x.size(0))[::-1].copy())]


@between
def noise(self, h, x, e):
    return h + torch.randn_like(h)


@between
def noise_in_place(self, h, x, e):
    return h + torch.empty_like(h).normal_()


@between
def pairs_of_nodes(self, h, x, e):
    return torch.softmax(h @ h.t(), 1) @ h


@between
def pairs_by_broadcasting(self, h, x, e):
    return (h[:, None] - h[None]).abs().mean(1)


@between
def distances(self, h, x, e):
    return h + torch.cdist(h, h).mean(1, keepdim=True)


@between
def contrast(self, h, x, e):
    near = F.cosine_similarity(h.unsqueeze(1), h.unsqueeze(0), dim=-1)
    return h - near.exp().sum(1, keepdim=True).log()


@between
def through_numpy(self, h, x, e):
    return h - torch.from_numpy(h.detach().numpy().mean(0))


@between
def through_lists(self, h, x, e):
    return h - sum(h[:, 0].tolist())


@between
def values_read(self, h, x, e):
    return h if h[:, 0].bool().cumsum(0)[-1].item() else -h


@between
def table_of_positions(self, h, x, e):
    return h + torch.arange(x.size(0), dtype=h.dtype)[:, None]


@between
def positions_as_features(self, h, x, e):
    return h + e[1].to(h.dtype).mean()


@between
def users_by_position(self, h, x, e):
    return h + utils.scatter((e[1] < 20).to(h.dtype)[:, None] * h[e[0]], e[1], 0, x.size(0))


class MixedNodes(Base):
    """A linear map over the nodes, as in MLP-Mixer."""

    def made(self):
        self.mix = nn.LazyLinear(3)

    def between(self, h, x, e):
        return h + self.mix(h.t()).t().mean(0)


class AttentionOverNodes(Base):
    def made(self):
        self.mix = nn.MultiheadAttention(HIDDEN, 2)

    def between(self, h, x, e):
        return self.mix(h, h, h)[0]


class Sequence(Base):
    """A recurrent network along the nodes."""

    def made(self):
        self.lstm = nn.LSTM(HIDDEN, HIDDEN)

    def between(self, h, x, e):
        return self.lstm(h)[0]


@between
def norm_over_nodes(self, h, x, e):
    return F.layer_norm(h.t(), (x.size(0),)).t()


@between
def instance_norm(self, h, x, e):
    return F.instance_norm(h.t()[None])[0].t()


class RowsInABuffer(Base):
    def made(self):
        self.register_buffer("rows", torch.zeros(1))

    def between(self, h, x, e):
        self.rows = h.detach()
        return h


@between
def vectorised(self, h, x, e):
    return h - torch.func.vmap(lambda row: row * 2)(h).mean(0)


@between
def inner_gradient(self, h, x, e):
    return h - torch.autograd.grad(h.sin().sum(), h, create_graph=True)[0] if self.training else h


@between
def product_over_nodes(self, h, x, e):
    return h * h.prod(0)


@between
def added_edges(self, h, x, e):
    return self.first(x, torch.cat([e, torch.tensor([[0, 1], [1, 0]])], 1))


@between
def drawn_by_python(self, h, x, e):
    return h * random.random()


@between
def late_slice(self, h, x, e):
    return h[: 10**6] if self.calls > 2 else h


@between
def late_order(self, h, x, e):
    return h.cumsum(0) if self.calls > 2 and not self.training else h


REFUSED = {
    rows_by_position: "rows of nodes are taken by their position",
    rows_by_position_beyond_a_rank: "rows of nodes are taken by their position",
    first_row: "rows of nodes are taken by their position",
    rows_by_number: "rows of nodes are taken by their position",
    split_rows: "rows of nodes are taken by their position",
    rows_one_by_one: "rows of nodes are taken by their position",
    rows_in_a_loop: "rows of nodes are taken by their position",
    top_rows: "topk along rows of nodes.*no order of nodes",
    sorted_rows: "sort along rows of nodes.*no order of nodes",
    ranked_rows: "sort along rows of nodes|argsort along rows of nodes",
    running_sum: "cumsum along rows of nodes.*no order of nodes",
    median_row: "median along rows of nodes.*no order of nodes",
    quantile_row: "along rows of nodes",
    shuffled: "torch.randperm gives an order of nodes",
    shuffled_by_numpy: "rows of nodes are taken by their position",
    pairs_of_nodes: "rows of nodes with each other, pair by pair",
    pairs_by_broadcasting: "pairs rows of nodes with each other",
    distances: "rows of nodes with each other, pair by pair|pairs rows of nodes",
    contrast: "pairs rows of nodes with each other|different rows",
    through_numpy: "rows of nodes leave torch .*numpy",
    through_lists: "rows of nodes leave torch .*tolist",
    values_read: "cumsum along rows of nodes",
    table_of_positions: "arange numbers the rows of one rank",
    positions_as_features: "positions of nodes become numbers of the model",
    users_by_position: "compares positions of nodes with numbers",
    MixedNodes: "self-check: the model fails|entry per position|copied|shape",
    AttentionOverNodes: "rows of nodes",
    Sequence: "recurrent network|rows of nodes",
    norm_over_nodes: "a norm over rows of nodes",
    instance_norm: "rows of nodes",
    RowsInABuffer: "the buffer rows after step 1 on 3 ranks",
    vectorised: "vmap hide",
    inner_gradient: "computes gradients of rows",
    product_over_nodes: "prod along rows of nodes",
    added_edges: "sources and targets of edges are mixed|behind rows that every rank has",
    drawn_by_python: "draws from Python's random",
}
LATE = {late_slice: "taken by their position", late_order: "cumsum along rows of nodes"}
DRAWN = [noise, noise_in_place]
