"""PyG layers with kernels: equal to PyG in one process, on 1 to 3 ranks, and PyG's own code does not run."""

import copy

import pytest
import torch

import fullgraph as fg
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

import torch_geometric.nn as pyg

from fullgraph.own_model.chunked.layer import ChunkedCall
from fullgraph.own_model.fast import FAST
from tests.own_model.nets import (
    ARC_WIDTH,
    HIDDEN,
    NODES,
    WIDTH,
    Featured,
    Net,
    Weighted,
    case_graph,
    cotangent,
    degrees,
    mlp,
    pna,
    shard_of,
    two,
)


def many_pna(width, out, **options):
    scalers = ["linear", "inverse_linear", "attenuation"]
    return pyg.PNAConv(width, out, ["sum", "var", "max", "mean"], scalers, degrees(), **options)


E_DIM = {"edge_dim": ARC_WIDTH}
MANY = ["sum", "mean", "min", "max", "var", "std"]
CASES = {
    "gat": lambda: two(Net, pyg.GATConv, heads=2, concat=False),
    "gatv2": lambda: Net(pyg.GATv2Conv(WIDTH, 4, heads=2), pyg.GATv2Conv(8, 4, heads=3, concat=False)),
    "gatv2 shared": lambda: two(Net, pyg.GATv2Conv, share_weights=True, negative_slope=0.1, bias=False),
    "gatv2 no loops": lambda: two(Net, pyg.GATv2Conv, add_self_loops=False, residual=True),
    "gatv2 edges": lambda: two(Featured, pyg.GATv2Conv, {"add_self_loops": False}, **E_DIM),
    "gatv2 edges and loops": lambda: two(Featured, pyg.GATv2Conv, **E_DIM),
    "gatv2 wide": lambda: Net(pyg.GATv2Conv(WIDTH, HIDDEN, heads=3), pyg.GATv2Conv(3 * HIDDEN, 4)),
    "transformer": lambda: two(Net, pyg.TransformerConv, {"root_weight": False}),
    "transformer heads": lambda: two(Net, pyg.TransformerConv, heads=2, concat=False, beta=True),
    "transformer edges": lambda: two(Featured, pyg.TransformerConv, {"bias": False}, **E_DIM),
    "agnn": lambda: Net(pyg.AGNNConv(), pyg.AGNNConv(requires_grad=False, add_self_loops=False)),
    "gine": lambda: Featured(
        pyg.GINEConv(mlp(WIDTH, HIDDEN, norm=True), **E_DIM), pyg.GINEConv(mlp(HIDDEN, 4), train_eps=True, **E_DIM)
    ),
    "gine direct": lambda: Embedded(pyg.GINEConv(mlp(WIDTH, HIDDEN)), pyg.GINEConv(mlp(HIDDEN, 4))),
    "pna": lambda: two(Net, pna, second={"towers": 2, "post_layers": 2}),
    "pna divided": lambda: two(Net, many_pna, towers=2, divide_input=True, train_norm=True),
    "res gated": lambda: two(Net, pyg.ResGatedGraphConv, {"root_weight": False}, {"act": torch.nn.ReLU()}),
    "res gated edges": lambda: two(Featured, pyg.ResGatedGraphConv, {"bias": False}, **E_DIM),
    "sage max": lambda: two(Net, pyg.SAGEConv, {"project": True}, aggr="max"),
    "sage min": lambda: two(Net, pyg.SAGEConv, {"normalize": True}, aggr="min"),
    "sage sum": lambda: two(Net, pyg.SAGEConv, {"root_weight": False}, aggr="sum"),
    "sage mean": lambda: two(Net, pyg.SAGEConv, {"project": True}),
    "sage many": lambda: two(Net, pyg.SAGEConv, aggr=MANY),
    "graph": lambda: two(Weighted, pyg.GraphConv, second={"aggr": "mean"}),
    "graph plain": lambda: two(Net, pyg.GraphConv, second={"aggr": "mean"}),
    "graph learned": lambda: Learned(pyg.GraphConv(WIDTH, HIDDEN), pyg.GraphConv(HIDDEN, 4, aggr="mean")),
}


class Embedded(Net):
    """Features of arcs that the model computes, as wide as those of nodes."""

    def __init__(self, first, second):
        super().__init__(first, second)
        self.maps = torch.nn.ModuleList(torch.nn.Linear(ARC_WIDTH, width) for width in (WIDTH, HIDDEN))

    def forward(self, x, edge_index, edge_attr):
        first, second = (one(edge_attr) for one in self.maps)
        return self.second(self.first(x, edge_index, first).tanh(), edge_index, second)


class Learned(Net):
    """Weights of arcs that the model computes."""

    def __init__(self, first, second):
        super().__init__(first, second)
        self.weigh = mlp(ARC_WIDTH, 1)

    def forward(self, x, edge_index, edge_attr):
        weight = self.weigh(edge_attr).sigmoid()[:, 0]
        return self.second(self.first(x, edge_index, weight).relu(), edge_index, weight)


def inputs_of(model, weight, attr):
    return (
        [weight] if isinstance(model, Weighted) else [attr] if isinstance(model, Featured | Learned | Embedded) else []
    )


def alone(model):
    """Output and gradients of PyG in one process."""
    graph = case_graph()
    given = (torch.from_numpy(a.copy()) for a in (graph.edge_weight, graph.edge_attr))
    out = model(torch.from_numpy(graph.x.copy()), torch.from_numpy(graph.edge_index).long(), *inputs_of(model, *given))
    (out * cotangent(torch.arange(NODES), out)).sum().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters()}


def on_ranks(transport, model):
    shard = shard_of(transport, case_graph())
    model = fg.distribute(copy.deepcopy(model), shard, check=transport.size == 2)
    outs = []
    for _ in range(2):  # the second step uses what the first one stored
        model.zero_grad()
        out = model(shard.x, shard.edge_index, *inputs_of(model.module, shard.edge_weight, shard.edge_attr))
        (out * cotangent(shard.full.ids, out)).sum().backward()
        fg.sync_gradients(model)
        outs.append(out.detach())
    assert torch.equal(*outs)
    return shard.full.ids, out.detach(), {name: p.grad for name, p in model.named_parameters()}


def trained_and_evaluated(transport, model):
    shard = shard_of(transport, case_graph())
    for one in (fg.distribute(copy.deepcopy(model), shard, check=False) for _ in range(2)):
        one(shard.x, shard.edge_index, shard.edge_attr).sum().backward()
        fg.sync_gradients(one)
        one.eval()
        one(shard.x, shard.edge_index, shard.edge_attr)


def test_a_second_model_runs_on_kernels_too(monkeypatch):
    """The first one marks the features of edges as rows of its own view of them."""
    monkeypatch.setattr(ChunkedCall, "__call__", never)
    run_threads(1, trained_and_evaluated, CASES["gine"]().double())


def short_of_memory(transport, model):
    shard = shard_of(transport, case_graph())
    memory = "8kB" if transport.rank else "1GiB"  # one rank only: all ranks choose alike
    model = fg.distribute(copy.deepcopy(model), shard, check=False, message_memory=memory)
    out = model(shard.x, shard.edge_index, shard.edge_attr)
    (out * cotangent(shard.full.ids, out)).sum().backward()
    fg.sync_gradients(model)
    return shard.full.ids, out.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["gatv2 edges", "transformer edges"])
def test_mapped_features_of_edges_must_fit(name):
    """A kernel that needs all of them at the same time leaves the layer to chunks."""
    torch.manual_seed(0)
    model = CASES[name]().double()
    wanted, grads = alone(copy.deepcopy(model))
    for ids, rows, mine in run_threads(3, short_of_memory, model):
        torch.testing.assert_close(rows, wanted[ids], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(mine, grads, rtol=1e-9, atol=1e-9)


def never(*_, **__):
    raise AssertionError("PyG's own code runs")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_pygs_layers(name, ranks, monkeypatch):
    torch.manual_seed(0)
    model = CASES[name]().double()
    wanted, grads = alone(copy.deepcopy(model))
    monkeypatch.setattr(ChunkedCall, "__call__", never)  # of `propagate` and of `edge_updater`
    for ids, rows, mine in run_threads(ranks, on_ranks, model):
        torch.testing.assert_close(rows, wanted[ids], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(mine, grads, rtol=1e-9, atol=1e-9)


def dropped(transport, model):
    shard = shard_of(transport, case_graph())
    model = fg.distribute(copy.deepcopy(model), shard, check=False, seed=3)
    out = model(shard.x, shard.edge_index, *inputs_of(model.module, shard.edge_weight, shard.edge_attr))
    (out * cotangent(shard.full.ids, out)).sum().backward()
    fg.sync_gradients(model)
    return shard.full.ids, out.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["gatv2", "gatv2 edges", "transformer"])
def test_dropout_of_attention_is_drawn_by_arc(name, monkeypatch):
    """Kernels draw the same numbers as PyG's code through F.dropout, on any number of ranks."""
    torch.manual_seed(0)
    model = CASES[name]().double()
    model.first.dropout = model.second.dropout = 0.4
    results = [run_threads(ranks, dropped, model) for ranks in (1, 3)]
    monkeypatch.setattr("fullgraph.own_model.fast.FAST", {})
    as_written = run_threads(1, dropped, model)
    [(order, plain, grads)] = as_written
    wanted = plain[order.argsort()]
    for ids, rows, mine in (rank for ranks in results for rank in ranks):
        torch.testing.assert_close(rows, wanted[ids], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(mine, grads, rtol=1e-9, atol=1e-9)


def test_every_kernel_has_a_case():
    parts = [part for make in CASES.values() for part in make().modules()]
    used = {f"{type(part).__module__}.{type(part).__name__}" for part in parts}
    assert set(FAST) - used <= {f"torch_geometric.nn.conv.{name}" for name in ELSEWHERE}


ELSEWHERE = (  # in test_layers.py, and in tests/own_typed
    "gcn_conv.GCNConv", "gcn2_conv.GCN2Conv", "gin_conv.GINConv", "rgcn_conv.RGCNConv", "rgcn_conv.FastRGCNConv",
)  # fmt: skip
