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


class Basis(nn.Module):
    def __init__(self, hidden, out_channels):
        super().__init__()
        self.conv1 = gnn.SAGEConv(hidden, hidden)
        self.conv2 = gnn.SAGEConv(hidden, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def hetero_bases(metadata, out_channels):
    return to_hetero_with_bases(Basis(8, out_channels), metadata, num_bases=3, in_channels={"x": 8})


class HGT(nn.Module):
    """PyG's examples/hetero/hgt_dblp.py."""

    def __init__(self, hidden, out_channels, metadata, heads=2, layers=2):
        super().__init__()
        self.lin_dict = nn.ModuleDict({kind: gnn.Linear(-1, hidden) for kind in metadata[0]})
        self.convs = nn.ModuleList(gnn.HGTConv(hidden, hidden, metadata, heads) for _ in range(layers))
        self.lin = gnn.Linear(hidden, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: self.lin_dict[kind](x).relu_() for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.lin(x_dict["paper"])


class HAN(nn.Module):
    """PyG's examples/hetero/han_imdb.py."""

    def __init__(self, in_channels, out_channels, metadata, hidden=8, heads=2):
        super().__init__()
        self.han_conv = gnn.HANConv(in_channels, hidden, heads=heads, dropout=0.0, metadata=metadata)
        self.lin = nn.Linear(hidden, out_channels)

    def forward(self, x_dict, edge_index_dict):
        out = self.han_conv(x_dict, edge_index_dict)
        return self.lin(out["paper"])


# Models over the nodes of all types in one numbering


class RGCN(nn.Module):
    """PyG's examples/rgcn.py, over features."""

    def __init__(self, in_channels, out_channels, num_relations, conv=gnn.RGCNConv, **options):
        super().__init__()
        self.conv1 = conv(in_channels, 8, num_relations, **options)
        self.conv2 = conv(8, out_channels, num_relations, **options)

    def forward(self, x, edge_index, edge_type):
        x = self.conv1(x, edge_index, edge_type).relu()
        return self.conv2(x, edge_index, edge_type)


def rgcn_bases(in_channels, out_channels, num_relations):
    return RGCN(in_channels, out_channels, num_relations, num_bases=3)


def rgcn_blocks(in_channels, out_channels, num_relations):
    return RGCN(in_channels, out_channels, num_relations, num_blocks=2)


def fast_rgcn(in_channels, out_channels, num_relations):
    return RGCN(in_channels, out_channels, num_relations, conv=gnn.FastRGCNConv, num_bases=3)


def rgat(in_channels, out_channels, num_relations):
    return RGCN(in_channels, out_channels, num_relations, conv=gnn.RGATConv)


class HEAT(nn.Module):
    def __init__(self, in_channels, out_channels, num_node_types, num_edge_types):
        super().__init__()
        self.emb = nn.Embedding(num_edge_types, 3)
        self.conv1 = gnn.HEATConv(in_channels, 8, num_node_types, num_edge_types, 4, 3, 5, heads=2)
        self.conv2 = gnn.HEATConv(16, out_channels, num_node_types, num_edge_types, 4, 3, 5, concat=False)

    def forward(self, x, edge_index, node_type, edge_type):
        edge_attr = self.emb(edge_type)
        x = self.conv1(x, edge_index, node_type, edge_type, edge_attr).relu()
        return self.conv2(x, edge_index, node_type, edge_type, edge_attr)


class ByNodeType(nn.Module):
    """Maps each type of node by its own matrix."""

    def __init__(self, in_channels, out_channels, num_node_types, num_relations):
        super().__init__()
        self.lin = gnn.HeteroLinear(in_channels, 8, num_node_types)
        self.conv = gnn.RGCNConv(8, out_channels, num_relations)

    def forward(self, x, edge_index, node_type, edge_type):
        return self.conv(self.lin(x, node_type).relu(), edge_index, edge_type)


# Types without features


class OwnRows(nn.Module):
    """An embedding of the type without features, read in three ways."""

    def __init__(self, num_nodes_dict, out_channels, metadata, read="weight"):
        super().__init__()
        self.read = read
        self.emb = nn.Embedding(num_nodes_dict["venue"], 7)
        self.gnn = to_hetero(SAGE(8, out_channels), metadata)

    def forward(self, x_dict, edge_index_dict, node_id_dict=None):
        rows = self.emb.weight
        if self.read == "node_id":
            rows = self.emb(node_id_dict["venue"])
        if self.read == "arange":
            rows = self.emb(torch.arange(self.emb.num_embeddings))
        return self.gnn({**x_dict, "venue": rows}, edge_index_dict)["paper"]


class ManyReaders(nn.Module):
    """Several layers read the rows of papers."""

    def __init__(self, hidden, out_channels):
        super().__init__()
        self.lin = gnn.HeteroDictLinear(-1, hidden, types=["author", "paper", "venue"])
        relations = [("paper", "written_by", "author"), ("paper", "cites", "paper"), ("paper", "appears", "venue")]
        self.conv = HeteroConv({name: gnn.SAGEConv((-1, -1), hidden) for name in relations})
        self.last = HeteroConv({("author", "writes", "paper"): gnn.SAGEConv((-1, -1), out_channels)})

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: x.tanh() for kind, x in self.lin(x_dict).items()}
        x_dict = self.conv(x_dict, edge_index_dict)
        return self.last({kind: x.relu() for kind, x in x_dict.items()}, edge_index_dict)["paper"]


class Weighted(nn.Module):
    def __init__(self, hidden, out_channels):
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({("author", "knows", "author"): gnn.GraphConv(-1, hidden)}) for _ in range(2)
        )
        self.last = gnn.SAGEConv((-1, -1), out_channels)

    def forward(self, x_dict, edge_index_dict, edge_weight_dict):
        author = x_dict["author"]
        for conv in self.convs:
            author = conv({"author": author}, edge_index_dict, edge_weight_dict=edge_weight_dict)["author"].relu()
        return self.last((author, x_dict["paper"]), edge_index_dict["author", "writes", "paper"])


class Featured(nn.Module):
    def __init__(self, hidden, out_channels):
        super().__init__()
        self.conv1 = HeteroConv(
            {
                ("author", "writes", "paper"): gnn.GATv2Conv((-1, -1), hidden, edge_dim=3, add_self_loops=False),
                ("paper", "cites", "paper"): gnn.TransformerConv((-1, -1), hidden, edge_dim=2),
            }
        )
        self.conv2 = gnn.SAGEConv(-1, out_channels)

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        x_dict = self.conv1(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)
        return self.conv2(x_dict["paper"].relu(), edge_index_dict["paper", "cites", "paper"])


class HANDropout(HAN):
    def __init__(self, in_channels, out_channels, metadata):
        super().__init__(in_channels, out_channels, metadata)
        self.han_conv.dropout = 0.5

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: F.dropout(x, p=0.3, training=self.training) for kind, x in x_dict.items()}
        return super().forward(x_dict, edge_index_dict)


class TakesData(nn.Module):
    """Takes a HeteroData, and reads its stores."""

    def __init__(self, hidden, out_channels, metadata):
        super().__init__()
        self.gnn = to_hetero(SAGE(hidden, hidden), metadata)
        self.lin = nn.Linear(hidden, out_channels)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, data):
        x_dict = {kind: data[kind].x * self.scale for kind in data.node_types}
        x_dict = self.gnn(x_dict, data.edge_index_dict)
        mean = x_dict["author"].sum(0) / data["author"].num_nodes
        return {"paper": self.lin(x_dict["paper"] + mean)}


class DictsOfData(nn.Module):
    """Reads dictionaries of a HeteroData, and names no type in its constructor."""

    def __init__(self, out_channels):
        super().__init__()
        self.conv = HeteroConv({("paper", "cites", "paper"): gnn.SAGEConv(-1, out_channels)})

    def forward(self, data):
        return self.conv(data.x_dict, data.edge_index_dict)["paper"]


class ByHand(nn.Module):
    """A sum of neighbours per relation, written out."""

    def __init__(self, in_channels, hidden, out_channels, metadata):
        super().__init__()
        self.lins = nn.ModuleDict({"__".join(name): nn.Linear(in_channels[name[0]], hidden) for name in metadata[1]})
        self.own = nn.Linear(in_channels["paper"], hidden)
        self.out = nn.Linear(hidden, out_channels)

    def forward(self, x_dict, edge_index_dict):
        h = self.own(x_dict["paper"])
        for name, (source, target) in edge_index_dict.items():
            if name[2] == "paper":
                messages = self.lins["__".join(name)](x_dict[name[0]])[source]
                h = h + torch.zeros_like(h).index_add(0, target, messages)
        return self.out(h.relu())


# What cannot be exact


class Offsets(nn.Module):
    """Numbers the nodes of two types together."""

    def __init__(self, hidden, out_channels):
        super().__init__()
        self.lin = gnn.HeteroDictLinear(-1, hidden, types=["author", "paper", "venue"])
        self.conv = gnn.SAGEConv(hidden, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = self.lin(x_dict)
        x = torch.cat([x_dict["author"], x_dict["paper"]])
        source, target = edge_index_dict["author", "writes", "paper"]
        edge_index = torch.stack([source, target + x_dict["author"].size(0)])
        return self.conv(x, edge_index)[x_dict["author"].size(0) :]


class FirstEdges(nn.Module):
    """Takes the first edges of a relation."""

    def __init__(self, hidden, out_channels):
        super().__init__()
        self.lin = nn.Linear(10, hidden)
        self.conv = gnn.SAGEConv(hidden, out_channels)

    def forward(self, x_dict, edge_index_dict):
        return self.conv(self.lin(x_dict["paper"]), edge_index_dict["paper", "cites", "paper"][:, :20])
