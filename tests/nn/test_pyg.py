"""The same weights in PyG's own layers give the same logits."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fullgraph import nn
from fullgraph.partition import cut_parts, partition
from fullgraph.run import Run, build_shard
from fullgraph.testing import run_threads
from tests.support import random_graph

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is an extra")
HIDDEN, HEADS = 16, 4


def to_pyg(conv):
    if isinstance(conv, nn.GCNConv):
        other = pyg.GCNConv(conv.in_width, conv.out_width)
        other.lin.weight, other.bias = conv.lin.weight, conv.bias
    elif isinstance(conv, nn.SAGEConv):
        other = pyg.SAGEConv(conv.in_width, conv.out_width)
        other.lin_l = torch.nn.Linear(conv.in_width, conv.out_width)  # neighbours, with the bias
        other.lin_l.weight, other.lin_l.bias = conv.lin_neigh.weight, conv.lin_self.bias
        other.lin_r.weight = conv.lin_self.weight
    elif isinstance(conv, nn.GINConv):
        norm = torch.nn.LayerNorm(conv.mapped_width)
        mlp = torch.nn.Sequential(copy.deepcopy(conv.lin1), norm, torch.nn.ReLU(), copy.deepcopy(conv.lin2))
        other = pyg.GINConv(mlp, train_eps=True)  # draws the weights of its network anew
        mlp[0].load_state_dict(conv.lin1.state_dict())
        mlp[1].load_state_dict(conv.norm.state_dict())
        mlp[3].load_state_dict(conv.lin2.state_dict())
        other.eps = conv.eps
    else:
        other = pyg.GATConv(conv.in_width, conv.head_width, heads=conv.heads, concat=conv.concat)
        other.lin.weight, other.bias = conv.lin.weight, conv.bias
        other.att_src = torch.nn.Parameter(conv.att_src[None])
        other.att_dst = torch.nn.Parameter(conv.att_dst[None])
    return other


def in_pyg(spec, model, x, edge_index):
    """A model's forward pass, without dropout, through PyG's layers."""
    if isinstance(model, nn.GNN):
        for layer, conv in enumerate(model.convs):
            x = to_pyg(conv)(F.relu(x) if layer else x, edge_index)
        return x
    h = model.encoder(x)
    if isinstance(spec, nn.GCNII):
        h = first = h.relu()
        for number, conv in enumerate(model.convs, 1):
            other = pyg.GCN2Conv(HIDDEN, spec.alpha, spec.lam, number, shared_weights=True)
            other.weight1 = torch.nn.Parameter(conv.lin.weight.T)
            h = other(h, first, edge_index).relu()
        return model.decoder(h)
    *norms, last = model.norms
    for conv, norm in zip(model.convs, norms, strict=True):
        h = pyg.DeepGCNLayer(to_pyg(conv), norm, torch.nn.ReLU(), block="res+", dropout=0.0)(h, edge_index)
    return model.decoder(last(h).relu())


def logits(transport, graph, assignment, spec):
    part = cut_parts(graph, assignment, transport.rank)
    shard = build_shard(Run(model=spec), part, transport)
    model = _built(graph, spec)
    return shard.full.ids, model(shard.full.x, shard.full.view).detach()


def _built(graph, spec):
    model = spec.build(graph.num_features, graph.num_classes, seed=1).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "eps")):  # zeros would hide a misplaced bias
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model


@pytest.mark.parametrize("kind", [nn.GCN, nn.GraphSAGE, nn.GIN, nn.GAT, nn.GCNII, nn.ResGCN])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_logits_equal_pyg(kind, directed, ranks):
    # 40 nodes with 900 arcs: many arcs are there twice, self loops too
    nodes = 40 if directed else 200
    graph = random_graph(nodes=nodes, arcs=900, directed=directed, seed=5, features=24, classes=7)
    spec = kind(layers=3, hidden=HIDDEN, dropout=0.5, norm="layer" if kind is nn.ResGCN else "none")
    model = _built(graph, spec)
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edge_index = torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))
    x = torch.from_numpy(graph.x.copy()).float()
    with torch.no_grad():
        want = in_pyg(spec, model, x, edge_index)
    got = torch.empty_like(want)
    for ids, rows in run_threads(ranks, logits, graph, partition(graph, ranks, method="random", seed=0), spec):
        got[ids] = rows
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
