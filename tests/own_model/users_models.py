"""Models as PyG users write them, in different styles: none of them knows of ranks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, degree, dropout_edge, scatter, softmax, to_undirected

# Ordinary models: (x, edge_index) and what edges have


class GCN(nn.Module):
    def __init__(self, in_channels, out_channels, hidden=16, dropout=0.0):
        super().__init__()
        self.conv1 = gnn.GCNConv(in_channels, hidden)
        self.conv2 = gnn.GCNConv(hidden, out_channels)
        self.dropout = dropout

    def forward(self, x, edge_index):
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, p=self.dropout, training=self.training)
        return self.conv2(x, edge_index)


class GCNWeighted(GCN):
    def forward(self, x, edge_index, edge_weight=None):
        x = self.conv1(x, edge_index, edge_weight).relu()
        return self.conv2(x, edge_index, edge_weight)


class GCNBatchNorm(GCN):
    def __init__(self, in_channels, out_channels, hidden=16):
        super().__init__(in_channels, out_channels, hidden)
        self.bn = nn.BatchNorm1d(hidden)

    def forward(self, x, edge_index):
        return F.log_softmax(self.conv2(F.relu(self.bn(self.conv1(x, edge_index))), edge_index), dim=1)


class Sage(nn.Module):
    def __init__(self, num_features, num_classes, hidden=16, aggr="mean"):
        super().__init__()
        self.convs = nn.ModuleList([gnn.SAGEConv(num_features, hidden, aggr=aggr), gnn.SAGEConv(hidden, num_classes)])

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = x.relu()
        return x


class SageMax(Sage):
    def __init__(self, num_features, num_classes):
        super().__init__(num_features, num_classes, aggr="max")


class SageLazy(nn.Module):
    def __init__(self, out_channels):
        super().__init__()
        self.one, self.two = gnn.SAGEConv((-1, -1), 16), gnn.SAGEConv((-1, -1), out_channels)

    def forward(self, x, adj_t):
        return self.two(self.one(x, adj_t).relu(), adj_t)


class GAT(nn.Module):
    def __init__(self, in_dim, out_dim, heads=2):
        super().__init__()
        self.conv1 = gnn.GATConv(in_dim, 8, heads=heads)
        self.conv2 = gnn.GATConv(8 * heads, out_dim, heads=1, concat=False)

    def forward(self, x, edge_index):
        return self.conv2(F.elu(self.conv1(x, edge_index)), edge_index)


class GATv2Edges(nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim=3):
        super().__init__()
        self.conv1 = gnn.GATv2Conv(in_channels, 8, heads=2, edge_dim=edge_dim)
        self.conv2 = gnn.GATv2Conv(16, out_channels, edge_dim=edge_dim)

    def forward(self, x, edge_index, edge_attr):
        return self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


class Jumping(nn.Module):
    def __init__(self, in_channels, out_channels, mode="cat"):
        super().__init__()
        self.convs = nn.ModuleList(gnn.SAGEConv(in_channels if not i else 16, 16) for i in range(3))
        self.jk = gnn.JumpingKnowledge(mode, 16, 3)
        self.lin = nn.Linear(48 if mode == "cat" else 16, out_channels)

    def forward(self, x, edge_index):
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            xs += [x]
        return self.lin(self.jk(xs))


class JumpingLSTM(Jumping):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels, "lstm")


class Residual(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.dec = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)
        self.convs = nn.ModuleList(gnn.GATv2Conv(16, 16) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))

    def forward(self, x, edge_index):
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(conv(norm(x), edge_index))
        return self.dec(x)


class APPNP(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin1, self.lin2, self.prop = nn.Linear(in_channels, 16), nn.Linear(16, out_channels), gnn.APPNP(4, 0.1)

    def forward(self, x, edge_index):
        return self.prop(self.lin2(self.lin1(x).relu()), edge_index)


class SGC(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.SGConv(in_channels, out_channels, K=2, cached=True)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class GCNII(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.dec = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)
        self.convs = nn.ModuleList(gnn.GCN2Conv(16, 0.1, 0.5, i + 1) for i in range(3))

    def forward(self, x, edge_index):
        x = x0 = self.enc(x).relu()
        for conv in self.convs:
            x = conv(x, x0, edge_index).relu()
        return self.dec(x)


class ARMA(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.ARMAConv(in_channels, 16, num_stacks=2, num_layers=2)
        self.conv2 = gnn.ARMAConv(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index), edge_index)


class TAG(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.TAGConv(in_channels, 16), gnn.TAGConv(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class PNA(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        how = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"]}
        deg = torch.tensor([2, 5, 9, 9, 4, 2, 1])
        self.conv1 = gnn.PNAConv(in_channels, 16, deg=deg, **how)
        self.conv2 = gnn.PNAConv(16, out_channels, deg=deg, **how)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def mlp(*widths):
    return nn.Sequential(nn.Linear(*widths[:2]), nn.ReLU(), nn.Linear(*widths[1:]))


class GIN(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.GINConv(mlp(in_channels, 16, 16), train_eps=True)
        self.conv2 = gnn.GINConv(mlp(16, 16, out_channels))

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index), edge_index)


class GINE(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.GINEConv(mlp(in_channels, 16, 16), edge_dim=3)
        self.conv2 = gnn.GINEConv(mlp(16, 16, out_channels), edge_dim=3)

    def forward(self, x, edge_index, edge_attr):
        return self.conv2(self.conv1(x, edge_index, edge_attr), edge_index, edge_attr)


class EdgeNetwork(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.NNConv(in_channels, 8, mlp(3, 8, in_channels * 8), aggr="mean")
        self.lin = nn.Linear(8, out_channels)

    def forward(self, x, edge_index, edge_attr):
        return self.lin(self.conv(x, edge_index, edge_attr).relu())


class Normed(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.GraphConv(in_channels, 16), gnn.GraphConv(16, out_channels)
        self.norm = gnn.GraphNorm(16)

    def forward(self, x, edge_index):
        return self.conv2(self.norm(self.conv1(x, edge_index)).relu(), edge_index)


class PairNormed(Normed):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.norm = gnn.PairNorm()


class VirtualNode(nn.Module):
    """A node connected to all others in both directions."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.SAGEConv(in_channels, 16), gnn.SAGEConv(16, out_channels)
        self.virtual = nn.Parameter(torch.zeros(1, 16))
        self.lin = nn.Linear(16, 16)

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        v = self.lin(self.virtual + h.mean(dim=0, keepdim=True))
        return self.conv2(h + v, edge_index)


class MLP(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.net = mlp(in_channels, 16, out_channels)

    def forward(self, x):
        return self.net(x)


class Transformer(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.TransformerConv(in_channels, 8, heads=2, beta=True)
        self.conv2 = gnn.TransformerConv(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class EdgeConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.EdgeConv(mlp(2 * in_channels, 16, out_channels), aggr="max")

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Normalised(EdgeConv):
    """Its input is made anew from x in every pass."""

    def forward(self, x, edge_index):
        return self.conv(F.normalize(x, dim=1).repeat(1, 2)[:, : x.size(1)], edge_index)


class Gated(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv, self.lin = gnn.GatedGraphConv(16, 2), nn.Linear(16, out_channels)

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index))


class ResGated(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.ResGatedGraphConv(in_channels, 16)
        self.conv2 = gnn.ResGatedGraphConv(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class GEN(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.GENConv(in_channels, 16, learn_t=True), gnn.GENConv(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class OwnLayer(gnn.MessagePassing):
    """The layer of PyG's tutorial."""

    def __init__(self, in_channels, out_channels):
        super().__init__(aggr="add")
        self.lin, self.bias = nn.Linear(in_channels, out_channels, bias=False), nn.Parameter(torch.zeros(out_channels))

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = degree(col, x.size(0), dtype=x.dtype)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        return self.propagate(edge_index, x=x, norm=deg_inv_sqrt[row] * deg_inv_sqrt[col]) + self.bias

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Tutorial(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = OwnLayer(in_channels, 16), OwnLayer(16, out_channels)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class ByHand(nn.Module):
    """Attention written out."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin, self.att, self.out = nn.Linear(in_channels, 16), nn.Linear(32, 1), nn.Linear(16, out_channels)

    def forward(self, x, edge_index):
        src, dst = edge_index
        h = self.lin(x)
        alpha = softmax(F.leaky_relu(self.att(torch.cat([h[src], h[dst]], dim=-1))), dst, num_nodes=x.size(0))
        return self.out(scatter(alpha * h[src], dst, dim=0, dim_size=x.size(0), reduce="sum").relu())


class PyGs(gnn.GCN):
    """One of PyG's own models, derived from."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, 16, 2, out_channels, norm="batch_norm", jk="last")


# A single argument that holds everything


class TakesData(nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.conv1, self.conv2 = gnn.GCNConv(num_features, 16), gnn.GCNConv(16, num_classes)

    def forward(self, data):
        x, edge_index = data.x, data.edge_index
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, p=0.0, training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


class TakesBatch(nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.conv = gnn.GINEConv(nn.Linear(num_features, 16), edge_dim=3)
        self.lin = nn.Linear(18, num_classes)

    def forward(self, batch):
        batch.x = self.conv(batch.x, batch.edge_index, batch.edge_attr).relu()
        assert batch.batch is None
        return self.lin(torch.cat([batch.x, batch.pe], dim=1)) / batch.num_nodes


# Outputs


class WithHidden(GCN):
    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return self.conv2(h, edge_index), h


class AsDict(GCN):
    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return {"embedding": h, "logits": self.conv2(h, edge_index)}


@dataclass
class Output:
    hidden: torch.Tensor
    out: torch.Tensor
    attention: torch.Tensor | None = None


class AsDataclass(GCN):
    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return Output(h, self.conv2(h, edge_index))


class OwnLoss(GCN):
    def forward(self, x, edge_index):
        out = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out, out.square().mean()


# Fields of the graph


class Positions(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin, self.conv = nn.Linear(in_channels + 2, 16), gnn.GATv2Conv(16, out_channels)

    def forward(self, x, edge_index, pe):
        return self.conv(self.lin(torch.cat([x, pe], dim=1)).relu(), edge_index)


class TypesOfNodesAndEdges(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.kinds, self.relations = nn.Embedding(4, 16), nn.Embedding(5, 16)
        self.lin, self.conv = nn.Linear(in_channels, 16), gnn.GINEConv(nn.Linear(16, out_channels))

    def forward(self, x, edge_index, node_kind, etype):
        return self.conv(self.lin(x) + self.kinds(node_kind), edge_index, self.relations(etype))


class Relational(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.RGCNConv(in_channels, 16, num_relations=5)
        self.conv2 = gnn.FastRGCNConv(16, out_channels, num_relations=5)

    def forward(self, x, edge_index, etype):
        return self.conv2(self.conv1(x, edge_index, etype).relu(), edge_index, etype)


# Tables with a row per node


class Embedded(nn.Module):
    def __init__(self, num_nodes, out_channels):
        super().__init__()
        self.emb = nn.Embedding(num_nodes, 8)
        self.conv1, self.conv2 = gnn.SAGEConv(8, 16), gnn.SAGEConv(16, out_channels)

    def rows(self):
        return self.emb.weight

    def forward(self, edge_index):
        return self.conv2(self.conv1(self.rows(), edge_index).relu(), edge_index)


class EmbeddedByArange(Embedded):
    def __init__(self, num_nodes, out_channels):
        super().__init__(num_nodes, out_channels)
        self.num_nodes = num_nodes

    def rows(self):
        return self.emb(torch.arange(self.num_nodes))


class EmbeddedById(Embedded):
    def forward(self, x, edge_index, node_id):
        return self.conv2(self.conv1(self.emb(node_id), edge_index).relu(), edge_index)


class BesideFeatures(nn.Module):
    def __init__(self, num_nodes, in_channels, out_channels):
        super().__init__()
        self.table = nn.Parameter(torch.randn(num_nodes, 4))
        self.register_buffer("bias", torch.linspace(0, 1, num_nodes))
        self.conv = gnn.GATConv(in_channels + 4, out_channels)

    def forward(self, x, edge_index):
        x = torch.cat([x, self.table], dim=-1) * (1 + self.bias.unsqueeze(1))
        return self.conv(x, edge_index)


class Historic(GCN):
    """Keeps every node's last embedding."""

    def __init__(self, num_nodes, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.register_buffer("last", torch.zeros(num_nodes, 16))

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        self.last.copy_(h.detach())
        return self.conv2(h + self.last, edge_index)


class LINKX(gnn.LINKX):
    def __init__(self, num_nodes, in_channels, out_channels):
        super().__init__(num_nodes, in_channels, 16, out_channels, num_layers=2)


# Dropped edges


class DropEdge(GCN):
    def forward(self, x, edge_index):
        edge_index, _ = dropout_edge(edge_index, p=0.3, training=self.training)
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class DropEdgeWeighted(GCN):
    def forward(self, x, edge_index, edge_weight):
        edge_index, kept = dropout_edge(edge_index, p=0.3, training=self.training)
        edge_weight = edge_weight[kept]
        return self.conv2(self.conv1(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class DropBothWays(GCN):
    def forward(self, x, edge_index):
        edge_index, _ = dropout_edge(edge_index, p=0.3, force_undirected=True, training=self.training)
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


# Against the edges


class TargetToSource(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.GATv2Conv(in_channels, 16, flow="target_to_source")
        self.conv2 = gnn.GCNConv(16, out_channels, flow="target_to_source")

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class BothWays(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.there, self.back = gnn.SAGEConv(in_channels, 16), gnn.SAGEConv(in_channels, 16, aggr="max")
        self.lin = gnn.GATConv(32, out_channels)

    def turned(self, edge_index):
        return edge_index.flip(0)

    def forward(self, x, edge_index):
        h = torch.cat([self.there(x, edge_index), self.back(x, self.turned(edge_index))], dim=1)
        return self.lin(h.relu(), self.turned(edge_index))


class BothWaysByIndex(BothWays):
    def turned(self, edge_index):
        return edge_index[[1, 0]]


class BothWaysByStack(BothWays):
    def turned(self, edge_index):
        row, col = edge_index
        return torch.stack([col, row], dim=0)


class FlippedWithFeatures(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.GINEConv(nn.Linear(in_channels, 16), edge_dim=3)
        self.conv2 = gnn.GATv2Conv(16, out_channels, edge_dim=3)

    def forward(self, x, edge_index, edge_attr):
        h = self.conv1(x, edge_index.flip([0]), edge_attr).relu()
        return self.conv2(h, edge_index, edge_attr)


class DirGNN(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.DirGNNConv(gnn.GCNConv(in_channels, 16))
        self.conv2 = gnn.DirGNNConv(gnn.SAGEConv(16, out_channels))

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class ExtremesBySource(nn.Module):
    """Equal messages share the gradient; there is another number of exchanges in evaluation than in training."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin, self.out = nn.Linear(in_channels, 16), nn.Linear(32, out_channels)

    def forward(self, x, edge_index):
        (row, col), h = edge_index, self.lin(x)
        pairs = (h[row] * h[col]).clamp(-0.2, 0.2)
        best = [scatter(pairs, row, 0, x.size(0), how) for how in ("max", "min")]
        return self.out(torch.cat(best, dim=1))


class Undirected(GCN):
    def forward(self, x, edge_index):
        return super().forward(x, to_undirected(edge_index))


class Cheb(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1, self.conv2 = gnn.ChebConv(in_channels, 16, K=3), gnn.ChebConv(16, out_channels, K=2)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class SumsBySource(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin, self.out = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)

    def forward(self, x, edge_index):
        row, col = edge_index
        h = self.lin(x)
        return self.out(torch.zeros_like(h).index_add(0, row, h[col]).tanh())


# Labels as inputs, matrices


class UniMP(nn.Module):
    """Labels of some training nodes are inputs, and the others are predicted."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.label_emb = nn.Embedding(num_classes, num_features)
        self.conv1 = gnn.TransformerConv(num_features, 8, heads=2)
        self.conv2 = gnn.TransformerConv(16, num_classes)

    def forward(self, x, y, edge_index, train_mask, node_id):
        given = train_mask & (node_id % 3 == 0) if self.training else train_mask
        x = x.clone()
        x[given] = x[given] + self.label_emb(y[given])
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class Masked(nn.Module):
    """PyG's MaskLabel; in training half of the labels are given, drawn by node."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.labels, self.conv = gnn.MaskLabel(num_classes, num_features), gnn.SAGEConv(num_features, num_classes)

    def forward(self, x, y, edge_index, train_mask, node_id):
        given = train_mask & (torch.rand(x.size(0)) < 0.5) if self.training else train_mask
        return self.conv(self.labels(x, y, given), edge_index)


class MaskedByCount(Masked):
    def forward(self, x, y, edge_index, train_mask, node_id):
        given = gnn.MaskLabel.ratio_mask(train_mask, 0.5)
        return self.conv(self.labels(x, y, given), edge_index)


class TransposedProduct(nn.Module):
    """Written for a SparseTensor."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x, adj_t):
        return adj_t @ self.lin(x)


class SparseMM(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)

    def forward(self, x, edge_index, edge_weight):
        n = x.size(0)
        adj = torch.sparse_coo_tensor(edge_index, edge_weight, (n, n))
        x = torch.sparse.mm(adj, self.lin1(x)).relu()
        return adj @ self.lin2(x)


class SparseNormed(SparseMM):
    def forward(self, x, edge_index):
        edge_index, weight = gcn_norm(edge_index, num_nodes=x.size(0), dtype=x.dtype)
        adj = torch.sparse_coo_tensor(edge_index.flip(0), weight, (x.size(0), x.size(0))).coalesce()
        return torch.spmm(adj, self.lin2(torch.spmm(adj, self.lin1(x)).relu()))


# Constructors


class StarArgs(gnn.GraphSAGE):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Options(nn.Module):
    def __init__(self, in_channels, out_channels, **kwargs):
        super().__init__()
        self.net = gnn.GIN(in_channels, out_channels=out_channels, **kwargs)

    def forward(self, x, edge_index):
        return self.net(x, edge_index)


def make_net(in_channels, out_channels, hidden=12):
    return gnn.Sequential(
        "x, edge_index",
        [(gnn.GCNConv(in_channels, hidden), "x, edge_index -> x"), nn.ReLU(), nn.Linear(hidden, out_channels)],
    )


# Frozen parts


class FrozenNoGrad(GCN):
    def forward(self, x, edge_index):
        with torch.no_grad():
            x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)


class FrozenWeights(GCN):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.conv1.requires_grad_(False)


class Detached(GCN):
    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).relu()
        return self.conv2(h.detach() + h.mean(0).detach(), edge_index) + self.conv2(h, edge_index)
