"""Models for PyG's `HeteroData` as users write them: none of them knows of ranks."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn import HeteroConv, to_hetero, to_hetero_with_bases


class SAGE(nn.Module):
    def __init__(self, hidden, out_channels):
        super().__init__()
        self.conv1 = gnn.SAGEConv((-1, -1), hidden)
        self.conv2 = gnn.SAGEConv((-1, -1), out_channels)

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)


class GAT(nn.Module):
    def __init__(self, hidden, out_channels, conv=gnn.GATConv):
        super().__init__()
        self.conv1 = conv((-1, -1), hidden, heads=2, add_self_loops=False)
        self.lin1 = gnn.Linear(-1, 2 * hidden)
        self.conv2 = conv((-1, -1), out_channels, add_self_loops=False)
        self.lin2 = gnn.Linear(-1, out_channels)

    def forward(self, x, edge_index):
        x = (self.conv1(x, edge_index) + self.lin1(x)).relu()
        return self.conv2(x, edge_index) + self.lin2(x)


def hetero_sage(metadata, out_channels):
    return to_hetero(SAGE(8, out_channels), metadata, aggr="sum")


def hetero_gat(metadata, out_channels):
    return to_hetero(GAT(8, out_channels), metadata, aggr="mean")


def hetero_gatv2(metadata, out_channels):
    return to_hetero(GAT(8, out_channels, gnn.GATv2Conv), metadata, aggr="max")


class Mixed(nn.Module):
    """A HeteroConv with a layer of its own kind per relation."""

    def __init__(self, hidden, out_channels):
        super().__init__()
        self.convs = nn.ModuleList()
        for _ in range(2):
            self.convs.append(
                HeteroConv(
                    {
                        ("paper", "cites", "paper"): gnn.GCNConv(-1, hidden),
                        ("author", "writes", "paper"): gnn.SAGEConv((-1, -1), hidden),
                        ("paper", "written_by", "author"): gnn.GATConv((-1, -1), hidden, add_self_loops=False),
                        ("author", "knows", "author"): gnn.GraphConv(-1, hidden),
                        ("author", "never", "paper"): gnn.GATv2Conv((-1, -1), hidden, add_self_loops=False),
                    },
                    aggr="sum",
                )
            )
        self.norm = nn.BatchNorm1d(hidden)
        self.lin = nn.Linear(hidden, out_channels)

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {key: F.leaky_relu(self.norm(x)) for key, x in x_dict.items()}
        return self.lin(x_dict["paper"])
