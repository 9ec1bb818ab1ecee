"""Attention over all nodes, and other layers of PyG's and of papers."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    degree,
    softmax,
    spmm,
)  # fmt: skip


class LinearAttention(nn.Module):
    """SGFormer's attention: sums over all nodes, no pairs."""

    def __init__(self, in_channels, out_channels, heads=2, dim=8):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.Wq, self.Wk = nn.Linear(in_channels, heads * dim), nn.Linear(in_channels, heads * dim)
        self.Wv = nn.Linear(in_channels, heads * dim)

    def forward(self, x, edge_index=None):
        qs = self.Wq(x).reshape(-1, self.heads, self.dim)
        ks = self.Wk(x).reshape(-1, self.heads, self.dim)
        vs = self.Wv(x).reshape(-1, self.heads, self.dim)
        qs = qs / torch.norm(qs, p=2)
        ks = ks / torch.norm(ks, p=2)
        N = qs.shape[0]
        kvs = torch.einsum("lhm,lhd->hmd", ks, vs)
        num = torch.einsum("nhm,hmd->nhd", qs, kvs) + N * vs
        all_ones = torch.ones([ks.shape[0]])
        ks_sum = torch.einsum("lhm,l->hm", ks, all_ones.to(ks.dtype))
        den = torch.einsum("nhm,hm->nh", qs, ks_sum)
        den = torch.unsqueeze(den, len(den.shape)) + torch.ones_like(den).unsqueeze(-1) * N
        return (num / den).mean(dim=1)


class SGFormerByHand(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.att, self.gnn = LinearAttention(in_channels, 8), gnn.GCNConv(in_channels, 8)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        return self.out(0.8 * self.norm(self.att(x)) + 0.2 * self.gnn(x, edge_index).relu())


class Polynormer(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.net = gnn.Polynormer(in_channels, 8, out_channels, local_layers=2, global_layers=1)

    def forward(self, x, edge_index, batch=None):
        return self.net(x, edge_index, batch)


class GPS(nn.Module):
    """Local messages beside attention between all nodes."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.dec = nn.Linear(in_channels, 8), nn.Linear(8, out_channels)
        self.conv = gnn.GPSConv(8, gnn.GINConv(nn.Linear(8, 8)), heads=2)

    def forward(self, x, edge_index):
        return self.dec(self.conv(self.enc(x), edge_index))


class GPSLocal(GPS):
    """Without its local part's partner."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.local, self.norm = gnn.GINConv(nn.Linear(8, 8)), gnn.BatchNorm(8)
        self.mlp, self.conv = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), None

    def forward(self, x, edge_index):
        x = self.enc(x)
        h = self.norm(self.local(x, edge_index) + x)
        return self.dec(h + self.mlp(h))


class DIFFormer(LinearAttention):
    """Diffusion with the simple kernel; a residual, a product with the graph, and a mean of heads."""

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels, heads=1, dim=8)
        self.fc = nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        row, col = edge_index
        n = x.shape[0]
        d = degree(col, n).to(x.dtype)
        value = 1.0 / d[col].sqrt() / d[row].clamp(min=1).sqrt()
        value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
        h = super().forward(x)
        adj = torch.sparse_coo_tensor(torch.stack([col, row]), value, (n, n)).to_sparse_csr()
        return self.fc(h + spmm(adj, h))


class Rational(nn.Module):
    """EGConv, ClusterGCNConv, LEConv, FiLMConv one after another."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.convs = nn.ModuleList([
            gnn.ClusterGCNConv(in_channels, 16), gnn.EGConv(16, 16, aggregators=["sum", "max", "symnorm"], num_heads=4),
            gnn.LEConv(16, 16), gnn.FiLMConv(16, 16), gnn.MFConv(16, out_channels, max_degree=4),
        ])  # fmt: skip

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = F.normalize(conv(x, edge_index), dim=-1)
        return self.convs[-1](x, edge_index)


class Mesh(nn.Module):
    """Layers of point clouds and meshes: FeaSt, GMM with pseudo coordinates, PointTransformer, PointNet."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.feast = gnn.FeaStConv(in_channels, 8, heads=2)
        self.gmm = gnn.GMMConv(8, 8, dim=3, kernel_size=2)
        self.point = gnn.PointTransformerConv(8, 8, pos_nn=nn.Linear(2, 8))
        self.net = gnn.PointNetConv(nn.Linear(10, 8), nn.Linear(8, out_channels))

    def forward(self, x, edge_index, edge_attr, pe):
        x = self.feast(x, edge_index).relu()
        x = self.gmm(x, edge_index, edge_attr).relu()
        x = self.point(x, pe, edge_index).relu()
        return self.net(x, pe, edge_index)


class Crystal(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.enc, self.lin = nn.Linear(in_channels, 8), nn.Linear(8, out_channels)
        self.convs = nn.ModuleList(gnn.CGConv(8, dim=3, batch_norm=True) for _ in range(2))
        self.pdn = gnn.PDNConv(8, 8, edge_dim=3, hidden_channels=4)

    def forward(self, x, edge_index, edge_attr):
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index, edge_attr)
        return self.lin(self.pdn(x, edge_index, edge_attr))


class RelationalAttention(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.RGATConv(in_channels, 8, num_relations=5, num_bases=3, heads=2, edge_dim=3)
        self.conv2 = gnn.RGATConv(16, out_channels, num_relations=5)
        for conv in (self.conv1, self.conv2):  # PyG leaves some of its weights as they are in memory
            for name in ("w", "l1", "b1", "l2", "b2"):
                nn.init.constant_(getattr(conv, name), 0.1)

    def forward(self, x, edge_index, etype, edge_attr):
        return self.conv2(self.conv1(x, edge_index, etype, edge_attr).relu(), edge_index, etype)


class SuperGATs(nn.Module):
    """examples/super_gat.py without its loss in the model."""

    def __init__(self, in_channels, out_channels, **options):
        super().__init__()
        options = {"attention_type": "MX", "edge_sample_ratio": 0.8, "is_undirected": True} | options
        self.conv1 = gnn.SuperGATConv(in_channels, 8, heads=2, dropout=0.0, **options)
        self.conv2 = gnn.SuperGATConv(16, out_channels, heads=2, concat=False, **options)

    def forward(self, x, edge_index):
        return self.conv2(F.elu(self.conv1(x, edge_index)), edge_index)


class Sequenced(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.net = gnn.Sequential("x, edge_index, weight", [
            (nn.Dropout(p=0.0), "x -> x"), (gnn.GCNConv(in_channels, 16), "x, edge_index, weight -> x1"),
            nn.ReLU(inplace=True), (gnn.GraphConv(16, 16), "x1, edge_index, weight -> x2"), nn.ReLU(inplace=True),
            (lambda x1, x2: [x1, x2], "x1, x2 -> xs"), (gnn.JumpingKnowledge("cat", 16, num_layers=2), "xs -> x"),
            nn.Linear(32, out_channels),
        ])  # fmt: skip

    def forward(self, x, edge_index, edge_weight):
        return self.net(x, edge_index, edge_weight)


class BasicVariants(nn.Module):
    """PyG's basic models with norms, activations and jumping knowledge."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        common = {"hidden_channels": 8, "num_layers": 2, "out_channels": 8}
        self.parts = nn.ModuleList([
            gnn.GraphSAGE(in_channels, jk="max", norm="layer_norm", act="elu", project=True, **common),
            gnn.GIN(in_channels, jk="lstm", norm="graph_norm", act_first=True, **common),
            gnn.GAT(in_channels, v2=True, heads=2, norm=gnn.MeanSubtractionNorm(), act="leaky_relu", **common),
            gnn.EdgeCNN(in_channels, norm=gnn.DiffGroupNorm(8, groups=2), **common),
        ])  # fmt: skip
        self.lin = nn.Linear(32, out_channels)

    def forward(self, x, edge_index):
        return self.lin(torch.cat([part(x, edge_index) for part in self.parts], dim=1))


class UNet(gnn.GraphUNet):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, 8, out_channels, depth=2)


class Hyper(nn.Module):
    """Rows of edge_index as nodes and hyperedges."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.HypergraphConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Signed(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = gnn.SignedConv(in_channels, 8, first_aggr=True)
        self.conv2 = gnn.SignedConv(8, 8, first_aggr=False)
        self.lin = nn.Linear(16, out_channels)

    def forward(self, x, edge_index, edge_attr):
        pos, neg = edge_index[:, edge_attr[:, 0] > 0], edge_index[:, edge_attr[:, 0] <= 0]
        z = F.relu(self.conv1(x, pos, neg))
        return self.lin(F.relu(self.conv2(z, pos, neg)))


class Nearest(nn.Module):
    """Neighbours are searched in the space of features."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = gnn.EdgeConv(nn.Linear(2 * in_channels, out_channels))

    def forward(self, x, edge_index):
        near = torch.cdist(x, x).topk(4, largest=False).indices
        return self.conv(x, torch.stack([near.flatten(), torch.arange(x.size(0)).repeat_interleave(4)]))


class DGI(nn.Module):
    """A contrast of each node with a summary of the whole graph, as an extra feature; corrupts by a permutation."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv, self.lin = gnn.GCNConv(in_channels, 16), nn.Linear(16, out_channels)
        self.prelu, self.weight = nn.PReLU(16), nn.Parameter(torch.eye(16))

    def forward(self, x, edge_index):
        pos = self.prelu(self.conv(x, edge_index))
        summary = torch.sigmoid(pos.mean(dim=0))
        score = torch.sigmoid(torch.matmul(pos, torch.matmul(self.weight, summary)))
        return self.lin(pos * score.unsqueeze(1))


class DGICorrupted(DGI):
    def forward(self, x, edge_index):
        neg = self.prelu(self.conv(x[torch.randperm(x.size(0))], edge_index))
        return super().forward(x, edge_index) + self.lin(neg)


class AirGNN(gnn.MessagePassing):
    """Adaptive message passing: a soft threshold on each row's residual."""

    def __init__(self, in_channels, out_channels, K=3, lambda_amp=0.5):
        super().__init__(aggr="add")
        self.lin1, self.lin2 = nn.Linear(in_channels, 16), nn.Linear(16, out_channels)
        self.K, self.lambda_amp = K, lambda_amp

    def forward(self, x, edge_index):
        edge_index, edge_weight = gcn_norm(edge_index, None, num_nodes=x.size(0), dtype=x.dtype)
        x = hh = self.lin2(self.lin1(x).relu())
        gamma = 1 / (2 * (1 - self.lambda_amp))
        lambda_ = self.lambda_amp
        for _ in range(self.K):
            y = x - gamma * 2 * (1 - lambda_) * (x - self.propagate(edge_index, x=x, edge_weight=edge_weight))
            x = hh + self.proximal(y - hh, gamma * lambda_)
        return x

    def proximal(self, x, lambda_):
        row_norm = torch.norm(x, p=2, dim=1)
        score = torch.clamp(row_norm - lambda_, min=0)
        index = torch.where(row_norm > 0)
        score[index] = score[index] / row_norm[index]
        return score.unsqueeze(1) * x

    def message(self, x_j, edge_weight):
        return edge_weight.view(-1, 1) * x_j


class ACM(nn.Module):
    """Low pass, high pass and identity, mixed by an attention over the three channels of each node."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.low, self.high = nn.Linear(in_channels, out_channels), nn.Linear(in_channels, out_channels)
        self.own, self.att = nn.Linear(in_channels, out_channels), nn.Parameter(torch.randn(3, 3))
        self.vecs = nn.ParameterList(nn.Parameter(torch.randn(out_channels, 1)) for _ in range(3))

    def forward(self, x, edge_index):
        index, _ = add_remaining_self_loops(edge_index, num_nodes=x.size(0))
        deg = degree(index[1], x.size(0), dtype=x.dtype)
        adj = torch.sparse_coo_tensor(index.flip(0), 1 / deg[index[1]], (x.size(0), x.size(0)))
        low, high, own = self.low(x), self.high(x), self.own(x)
        outs = [F.relu(torch.spmm(adj, low)), F.relu(high - torch.spmm(adj, high)), F.relu(own)]
        logits = torch.cat([torch.sigmoid(o @ v) for o, v in zip(outs, self.vecs, strict=True)], 1) @ self.att / 3
        weights = torch.softmax(logits, 1)
        return 3 * sum(weights[:, i][:, None] * out for i, out in enumerate(outs))


class AttentionReadOut(nn.Module):
    """Gated attention over all nodes gives one vector for the graph, which every node reads."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv, self.gate = gnn.SAGEConv(in_channels, 8), nn.Linear(8, 1)
        self.lin = nn.Linear(16, out_channels)

    def forward(self, x, edge_index):
        h = self.conv(x, edge_index).relu()
        weight = softmax(self.gate(h), torch.zeros(h.size(0), dtype=torch.long), num_nodes=1)
        whole = (weight * h).sum(0, keepdim=True)
        return self.lin(torch.cat([h, whole.expand(h.size(0), -1)], dim=1))
