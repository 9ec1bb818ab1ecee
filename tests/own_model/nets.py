"""Small models of PyG layers, run in one process and on many ranks."""

import copy
import inspect

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import nn

import fullgraph as fg
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned
from tests.support import random_graph

WIDTH, HIDDEN, CLASSES, ARC_WIDTH, NODES = 6, 8, 4, 3, 40


class Net(nn.Module):
    """Two layers; `given` names their arguments about arcs."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).tanh(), edge_index)


class Weighted(Net):
    def forward(self, x, edge_index, edge_weight):
        return self.second(self.first(x, edge_index, edge_weight).tanh(), edge_index, edge_weight)


class Featured(Net):
    def forward(self, x, edge_index, edge_attr):
        return self.second(self.first(x, edge_index, edge_attr).tanh(), edge_index, edge_attr)


class Deep(nn.Module):
    """GCN2 reads the first rows in every layer."""

    def __init__(self, **options):
        super().__init__()
        self.encoder = nn.Linear(WIDTH, HIDDEN)
        self.convs = nn.ModuleList(pyg.GCN2Conv(HIDDEN, 0.1, 0.5, k + 1, **options) for k in range(3))

    def forward(self, x, edge_index):
        x = first = self.encoder(x)
        for conv in self.convs:
            x = conv(x, first, edge_index).tanh()
        return x


class Norms(nn.Module):
    """An AGNN has few weights of its own."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(WIDTH, HIDDEN)
        self.first, self.second = pyg.AGNNConv(), pyg.AGNNConv()

    def forward(self, x, edge_index):
        return self.second(self.first(self.encoder(x), edge_index).tanh(), edge_index)


class Shared(nn.Module):
    """One layer called three times, residuals, and jumping knowledge over all of them."""

    def __init__(self):
        super().__init__()
        self.encoder, self.conv = nn.Linear(WIDTH, HIDDEN), pyg.GATv2Conv(HIDDEN, HIDDEN)
        self.jump, self.head = pyg.JumpingKnowledge("lstm", HIDDEN, 3), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        x, seen = self.encoder(x), []
        for _ in range(3):
            x = x + self.conv(x, edge_index).relu()
            seen.append(x)
        return self.head(self.jump(seen))


class Normed(nn.Module):
    """Every norm over all nodes."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(pyg.SAGEConv(WIDTH if not k else HIDDEN, HIDDEN) for k in range(6))
        norms = (pyg.LayerNorm(HIDDEN), pyg.GraphNorm(HIDDEN), pyg.PairNorm(), pyg.PairNorm(scale_individually=True))
        self.norms = nn.ModuleList([*norms, pyg.MeanSubtractionNorm(), pyg.LayerNorm(HIDDEN, mode="node")])
        self.size = pyg.GraphSizeNorm()

    def forward(self, x, edge_index):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, edge_index)).tanh()
        return self.size(x)


class ByHand(nn.Module):
    """No PyG layer: rows are indexed by the ends of arcs."""

    def __init__(self):
        super().__init__()
        self.lin, self.out = nn.Linear(2 * WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        row, col = edge_index
        messages = self.lin(torch.cat([x[row], x[col]], 1)).relu()
        return self.out(torch.zeros(len(x), HIDDEN, dtype=x.dtype).index_add(0, col, messages))


def mlp(width, out, *, norm=False):
    return nn.Sequential(
        nn.Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN) if norm else nn.Identity(), nn.ReLU(), nn.Linear(HIDDEN, out)
    )


def case_graph():
    base = random_graph(nodes=NODES, arcs=160, directed=True, weighted=True, features=WIDTH, classes=CLASSES, seed=2)
    attr = np.random.default_rng(0).standard_normal((base.num_arcs, ARC_WIDTH))
    masks = (base.train_mask, base.val_mask, base.test_mask)
    return fg.Graph(base.edge_index, base.x, base.y, masks, edge_weight=base.edge_weight, edge_attr=attr)


def degrees():
    return torch.bincount(torch.from_numpy(np.diff(case_graph().indptr)))


def pna(width, out, **options):
    scalers = ["identity", "amplification", "attenuation"]
    aggregators = ["mean", "min", "max", "std"]
    return pyg.PNAConv(width, out, aggregators=aggregators, scalers=scalers, deg=degrees(), **options)


def two(kind, layer, first=None, second=None, **options):
    """A net of two layers of one kind."""
    return kind(layer(WIDTH, HIDDEN, **options, **(first or {})), layer(HIDDEN, CLASSES, **options, **(second or {})))


E_DIM = {"edge_dim": ARC_WIDTH}
STACK = {"in_channels": WIDTH, "hidden_channels": HIDDEN, "num_layers": 3, "out_channels": CLASSES}
NETS = {
    "gcn": lambda: two(Net, pyg.GCNConv),
    "gcn weighted": lambda: two(Weighted, pyg.GCNConv, {"improved": True}, {"add_self_loops": False}),
    "gcn cached": lambda: two(Net, pyg.GCNConv, cached=True),
    "gcn unnormalised": lambda: two(Weighted, pyg.GCNConv, normalize=False),
    "sage mean": lambda: two(Net, pyg.SAGEConv, second={"normalize": True}),
    "sage max": lambda: two(Net, pyg.SAGEConv, {"project": True}, aggr="max"),
    "sage sum": lambda: two(Net, pyg.SAGEConv, {"root_weight": False}, aggr="sum"),
    "sage lazy": lambda: Net(pyg.SAGEConv(-1, HIDDEN), pyg.SAGEConv(-1, CLASSES)),
    "gat": lambda: Net(pyg.GATConv(WIDTH, 4, heads=2), pyg.GATConv(HIDDEN, CLASSES, heads=3, concat=False)),
    "gat featured": lambda: two(Featured, pyg.GATConv, heads=1, **E_DIM),
    "gatv2": lambda: two(Featured, pyg.GATv2Conv, heads=2, concat=False, **E_DIM),
    "transformer": lambda: two(Featured, pyg.TransformerConv, heads=2, concat=False, beta=True, **E_DIM),
    "gin": lambda: Net(pyg.GINConv(mlp(WIDTH, HIDDEN, norm=True), train_eps=True), pyg.GINConv(mlp(HIDDEN, CLASSES))),
    "gine": lambda: Featured(
        pyg.GINEConv(mlp(WIDTH, HIDDEN), **E_DIM), pyg.GINEConv(mlp(HIDDEN, CLASSES), train_eps=True, **E_DIM)
    ),
    "graph": lambda: two(Weighted, pyg.GraphConv, second={"aggr": "mean"}),
    "gen": lambda: two(Featured, pyg.GENConv, {"learn_t": True}, {"aggr": "powermean", "learn_p": True}, **E_DIM),
    "pna": lambda: two(Featured, pna, second={"towers": 2}, **E_DIM),
    "nn": lambda: Featured(
        pyg.NNConv(WIDTH, HIDDEN, mlp(ARC_WIDTH, WIDTH * HIDDEN)),
        pyg.NNConv(HIDDEN, CLASSES, mlp(ARC_WIDTH, HIDDEN * CLASSES), aggr="mean"),
    ),
    "res gated": lambda: two(Featured, pyg.ResGatedGraphConv, **E_DIM),
    "cluster gcn": lambda: two(Net, pyg.ClusterGCNConv, {"diag_lambda": 0.3}),
    "gcn2": Deep,
    "gcn2 two weights": lambda: Deep(shared_weights=False),
    "edge conv": lambda: Net(pyg.EdgeConv(mlp(2 * WIDTH, HIDDEN)), pyg.EdgeConv(mlp(2 * HIDDEN, CLASSES), aggr="mean")),
    "edge conv normed": lambda: Net(
        pyg.EdgeConv(mlp(2 * WIDTH, HIDDEN, norm=True), aggr="mean"), pyg.SAGEConv(HIDDEN, CLASSES)
    ),
    "general": lambda: two(Featured, pyg.GeneralConv, {"attention": True, "heads": 2}, in_edge_channels=ARC_WIDTH),
    "le": lambda: two(Weighted, pyg.LEConv),
    "supergat": lambda: two(Net, pyg.SuperGATConv, second={"attention_type": "SD"}),
    "agnn": Norms,
    # further than one hop in a call
    "tag": lambda: two(Weighted, pyg.TAGConv),
    "appnp": lambda: Net(pyg.GCNConv(WIDTH, CLASSES), pyg.APPNP(5, 0.1)),
    "sg": lambda: two(Net, pyg.SGConv, {"cached": True}, K=3),
    "ssg": lambda: two(Net, pyg.SSGConv, alpha=0.1, K=2),
    "arma": lambda: two(Net, pyg.ARMAConv, num_stacks=2, num_layers=3),
    "gated": lambda: Net(pyg.GatedGraphConv(HIDDEN, 3), pyg.GatedGraphConv(HIDDEN, 2)),
    "mix hop": lambda: Net(pyg.MixHopConv(WIDTH, HIDDEN), pyg.MixHopConv(3 * HIDDEN, CLASSES)),
    # others
    "film": lambda: two(Net, pyg.FiLMConv),
    "mf": lambda: two(Net, pyg.MFConv),
    "eg": lambda: two(Net, pyg.EGConv, aggregators=["sum", "symnorm", "max"], num_heads=2, num_bases=2),
    "anti symmetric": lambda: Net(pyg.AntiSymmetricConv(WIDTH), pyg.AntiSymmetricConv(WIDTH)),
    "shared": Shared,
    "by hand": ByHand,
    "normed": Normed,
    # PyG's own models
    "model gcn": lambda: pyg.GCN(**STACK, norm="batch_norm", jk="cat"),
    "model sage": lambda: pyg.GraphSAGE(**STACK),
    "model gat": lambda: pyg.GAT(**STACK, v2=True, heads=2, jk="max"),
    "model gin": lambda: pyg.GIN(**STACK, norm="batch_norm"),
    "model pna": lambda: pyg.PNA(
        **STACK, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=degrees(), edge_dim=3
    ),
}


def made(name):
    return NETS[name]().double()


def arc_inputs(model, name, weight, attr):
    """The model's arguments beside x and edge_index."""
    names = inspect.signature(model.forward).parameters
    wanted = {"edge_weight": weight, "edge_attr": attr} if not name.startswith("model") else {}
    if name == "model pna":
        wanted = {"edge_attr": attr}
    return {key: value for key, value in wanted.items() if key in names}


def cotangent(rows, like):
    columns = torch.arange(1, like.shape[1] + 1, dtype=torch.float64)
    return torch.cos(rows[:, None].double() * 3 + columns)


def in_one_process(name, state):
    """Logits, gradients and buffers of plain PyG, from the weights in `state`."""
    graph, model = case_graph(), made(name)
    model.load_state_dict(state)
    edge_index = torch.from_numpy(graph.edge_index.astype(np.int64))
    weight, attr = torch.from_numpy(graph.edge_weight.copy()), torch.from_numpy(graph.edge_attr.copy())
    out = model(torch.from_numpy(graph.x.copy()), edge_index, **arc_inputs(model, name, weight, attr))
    (out * cotangent(torch.arange(NODES), out)).sum().backward()
    zero = {key: torch.zeros_like(p) for key, p in model.named_parameters()}
    return out.detach(), zero | {k: p.grad for k, p in model.named_parameters() if p.grad is not None}, model


def shard_of(transport, graph, method="random", **options):
    part = cut_parts(graph, partition(graph, transport.size, method=method, seed=0), transport.rank)
    return Partitioned(dtype=torch.float64, precompute=False, **options).place(part, transport, fg.Wire(), "sum")


def on_ranks(transport, name, check=False):
    """The same for this rank, through `distribute`; ranks draw their own weights, and take rank 0's."""
    shard = shard_of(transport, case_graph())
    model = fg.distribute(made(name), shard, check=check)
    state = copy.deepcopy(model.state_dict())
    inputs = arc_inputs(model.module, name, shard.edge_weight, shard.edge_attr)
    out = model(shard.x, shard.edge_index, **inputs)
    (out * cotangent(shard.full.ids, out)).sum().backward()
    fg.sync_gradients(model)
    buffers = {key: value.double() for key, value in model.module.named_buffers()}
    return shard.full.ids, out.detach(), {key: p.grad for key, p in model.named_parameters()}, buffers, state
