"""Models that change the edges, ask the whole graph, or make a matrix of it."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.utils import (
    add_self_loops,
    coalesce,
    contains_self_loops,
    degree,
    homophily,
    is_undirected,
    k_hop_subgraph,
    negative_sampling,
    one_hot,
    remove_self_loops,
    sort_edge_index,
    subgraph,
    to_dense_adj,
)  # fmt: skip


class EdgeScored(nn.Module):
    """Weights of edges from an MLP of both ends and the edge's features, then a weighted GCN."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.score = gnn.MLP([2 * in_channels + 3, 16, 1], norm="batch_norm")
        self.conv1, self.conv2 = gnn.GCNConv(in_channels, 16), gnn.GCNConv(16, out_channels)

    def forward(self, x, edge_index, edge_attr):
        weight = self.score(torch.cat([x[edge_index[0]], x[edge_index[1]], edge_attr], dim=-1)).sigmoid().squeeze(-1)
        return self.conv2(self.conv1(x, edge_index, weight).relu(), edge_index, weight)


class EdgesByLikeness(nn.Module):
    """Only edges between like rows carry messages (GNNGuard, GCN-Jaccard)."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.GCNConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        like = F.cosine_similarity(x[edge_index[0]], x[edge_index[1]], dim=-1)
        kept = like > -0.2
        return self.conv(x, edge_index[:, kept], like[kept].exp())


class Loops(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.SAGEConv(in_channels, 8, aggr="sum")
        self.att = gnn.GATConv(8, out_channels, add_self_loops=False, edge_dim=3)

    def forward(self, x, edge_index, edge_attr):
        clean, attr = remove_self_loops(edge_index, edge_attr)
        x = self.conv(x, clean).relu()
        index, attr = add_self_loops(clean, attr, fill_value="mean", num_nodes=x.size(0))
        return self.att(x, index, attr)


class Subgraphs(nn.Module):
    """Messages between the nodes of a mask only."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.GCNConv(in_channels, 16), gnn.GCNConv(16, out_channels)

    def forward(self, x, edge_index, node_kind):
        some, _ = subgraph(node_kind > 0, edge_index, num_nodes=x.size(0))
        return self.conv2(self.conv1(x, some).relu(), edge_index)


class SubgraphRelabelled(Subgraphs):
    def forward(self, x, edge_index, node_kind):
        kept = node_kind > 0
        some, _ = subgraph(kept, edge_index, relabel_nodes=True, num_nodes=x.size(0))
        h = x.new_zeros(x.size(0), 16)
        h[kept] = self.conv1(x[kept], some).relu()
        return self.conv2(h, edge_index)


class KHop(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.GCNConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        _, near, _, _ = k_hop_subgraph(0, 2, edge_index, num_nodes=x.size(0))
        return self.conv(x, near)


class DenseAdjacency(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        adj = to_dense_adj(edge_index, max_num_nodes=x.size(0))[0].to(x.dtype)
        return adj.t() @ self.lin(x)


class Sorted(KHop):
    def forward(self, x, edge_index):
        return self.conv(x, sort_edge_index(edge_index, sort_by_row=False))


class Coalesced(KHop):
    def forward(self, x, edge_index):
        return self.conv(x, coalesce(edge_index))


class Negatives(KHop):
    def forward(self, x, edge_index):
        other = negative_sampling(edge_index, x.size(0))
        return self.conv(x, edge_index) - self.conv(x, other)


class AsksTheGraph(KHop):
    """Branches on properties of the whole graph."""

    def forward(self, x, edge_index):
        if not contains_self_loops(edge_index):
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        return self.conv(x, edge_index)


class AsksWhetherUndirected(KHop):
    def forward(self, x, edge_index):
        return self.conv(x, edge_index if is_undirected(edge_index) else edge_index.flip(0))


class Homophily(KHop):
    def forward(self, x, edge_index, y):
        return self.conv(x, edge_index) * homophily(edge_index, y, method="edge")


class DegreesAsFeatures(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.emb, self.conv = nn.Embedding(6, 8), gnn.GINConv(nn.Linear(in_channels + 8 + 6, out_channels))

    def forward(self, x, edge_index):
        deg = degree(edge_index[1], x.size(0), dtype=torch.long).clamp(max=5)
        return self.conv(torch.cat([x, self.emb(deg), one_hot(deg, num_classes=6).to(x.dtype)], dim=-1), edge_index)


class SparseCSR(nn.Module):
    """A CSR tensor of the edges."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        n = x.size(0)
        adj = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(edge_index.size(1), dtype=x.dtype), (n, n))
        return adj.to_sparse_csr() @ self.lin(x)


class SparseInLayer(KHop):
    """The matrix goes into a PyG layer, as the documentation's memory-efficient aggregation does."""

    def forward(self, x, edge_index):
        from torch_geometric.utils import to_torch_csc_tensor

        adj = to_torch_csc_tensor(
            edge_index, torch.ones_like(edge_index[0], dtype=x.dtype), size=(x.size(0), x.size(0))
        )
        return self.conv(x, adj.t())


class MatrixInLayer(KHop):
    """A matrix of the edges in the place of edge_index."""

    def forward(self, x, edge_index):
        ones = torch.ones(edge_index.size(1), dtype=x.dtype)
        adj = torch.sparse_coo_tensor(edge_index.flip(0), ones, (x.size(0), x.size(0))).coalesce()
        return self.conv(x, adj.to_sparse_csr())
