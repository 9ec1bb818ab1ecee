"""PyG layers on the published wires: the same equations as our own layers, late, averaged or with few bits."""

import copy

import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph import nn
from fullgraph.axes import STRATEGIES
from fullgraph.codec import LowBit, Subsample
from fullgraph.errors import InputError
from fullgraph.partition import cut_parts
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads
from fullgraph.transport import Key
from tests.support import CASES, HaloRules, coded, halo_trace, stale_trace

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is an extra")

CASE, STEPS = CASES["directed"], 6
PLAIN = {"layers": 3, "hidden": 16, "dropout": 0.0, "norm": "none"}
SPECS = {"gcn": nn.GCN(**PLAIN), "sage": nn.GraphSAGE(**PLAIN), "gin": nn.GIN(**PLAIN), "gat": nn.GAT(**PLAIN)}


def to_pyg(conv):
    """A PyG layer with the weights of ours, and the names of these weights in ours."""
    if isinstance(conv, nn.GCNConv):
        other = pyg.GCNConv(conv.in_width, conv.out_width)
        return other, {"lin.weight": "lin.weight", "bias": "bias"}
    if isinstance(conv, nn.SAGEConv):
        other = pyg.SAGEConv(conv.in_width, conv.out_width)
        names = {"lin_l.weight": "lin_neigh.weight", "lin_l.bias": "lin_self.bias", "lin_r.weight": "lin_self.weight"}
        return other, names
    if isinstance(conv, nn.GINConv):
        inner = conv.mapped_width
        parts = (torch.nn.Linear(conv.in_width, inner), torch.nn.LayerNorm(inner), torch.nn.ReLU())
        other = pyg.GINConv(torch.nn.Sequential(*parts, torch.nn.Linear(inner, conv.out_width)), train_eps=True)
        pairs = {0: "lin1", 1: "norm", 3: "lin2"}
        names = {f"nn.{i}.{w}": f"{name}.{w}" for i, name in pairs.items() for w in ("weight", "bias")}
        return other, {**names, "eps": "eps"}
    other = pyg.GATConv(conv.in_width, conv.head_width, heads=conv.heads, concat=conv.concat)
    return other, {name: name for name in ("lin.weight", "att_src", "att_dst", "bias")}


class Stack(torch.nn.Module):
    """x_{l+1} = conv_l(relu(x_l)), as in our models."""

    def __init__(self, convs):
        super().__init__()
        self.convs = torch.nn.ModuleList(convs)

    def forward(self, x, edge_index):
        for layer, conv in enumerate(self.convs):
            x = conv(F.relu(x) if layer else x, edge_index)
        return x


def in_pyg(spec, graph):
    ours = spec.build(graph.num_features, graph.num_classes, seed=3, dtype=torch.float64)
    weights, names, convs = dict(ours.named_parameters()), {}, []
    for number, conv in enumerate(ours.convs):
        other, own_names = to_pyg(conv)
        other = other.double()
        for name, parameter in other.named_parameters():
            names[f"convs.{number}.{name}"] = f"convs.{number}.{own_names[name]}"
            with torch.no_grad():
                parameter.copy_(weights[f"convs.{number}.{own_names[name]}"].view_as(parameter))
        convs.append(other)
    assert set(names.values()) == set(weights)
    return Stack(convs), names


def trace(transport, written, recipe):
    graph, assignment = CASE(transport.size)
    part = cut_parts(graph, assignment, transport.rank)
    shard = Partitioned(dtype=torch.float64, precompute=False, seed=3).place(part, transport, fg.Wire(), "sum")
    net, names = written
    model = fg.distribute(copy.deepcopy(net), shard, recipe, epochs=STEPS, check=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses, grads = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        out, rows = model(shard.x, shard.edge_index), shard.train_mask
        loss = fg.mean_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="none"), shard)
        loss.backward()
        fg.sync_gradients(model)
        losses.append(transport.all_reduce(Key("trace", step), loss.detach().clone()).wait())
        grads.append({names[name]: p.grad.flatten().clone() for name, p in model.named_parameters()})
        optimizer.step()
    return torch.stack(losses), grads


def yesterday(step):
    return step - 1 if step else None


def today(step):
    return step


def in_bits(number):
    return lambda graph, part: coded(graph, part, LowBit(number), LowBit(number))


def columns(graph, part):
    def seen(step, layer, rows):
        chosen = Subsample(4.0).columns(rows.shape[1], Key(f"halo/layer{layer}", step, run=3))
        keep = torch.zeros(rows.shape[1], dtype=rows.dtype).index_fill(0, chosen, 1.0)
        return rows if layer == 2 else rows * keep

    return seen


EQUATIONS = {
    "vanilla": ({}, today, None, {}),
    "pipegcn": ({}, yesterday, None, {}),
    "pipegcn-gf": ({"gamma": 0.8}, yesterday, None, {"gamma_features": 0.8, "gamma_gradients": 0.8}),
    "sylvie-s": ({"bits": 2}, today, in_bits(2), {}),
    "sylvie-a": ({"bits": 4, "refresh": 100}, yesterday, in_bits(4), {}),
    "fixed": ({}, today, columns, {}),
}


def oracle(name, model):
    _, read, wire, smoothing = EQUATIONS[name]
    graph, assignment = CASE(3)
    part = torch.from_numpy(assignment.part.copy())
    crossing = {} if wire is None else {"cross": wire(graph, part)}
    return stale_trace(graph, part, SPECS[model], read, STEPS, narrow_first=False, **smoothing, **crossing)


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("name", EQUATIONS)
def test_wires_equal_their_equations(name, model):
    options, spec = EQUATIONS[name][0], SPECS[model]
    losses, grads = oracle(name, model)
    written = in_pyg(spec, CASE(3)[0])  # not by the ranks: threads share the generator that weights are drawn from
    for got_losses, got_grads in run_threads(3, trace, written, STRATEGIES.make(name, **options)):
        torch.testing.assert_close(got_losses, losses, rtol=1e-9, atol=1e-9)
        for got, want in zip(got_grads, grads, strict=True):
            flat = {key: value.flatten() for key, value in want.items()}
            torch.testing.assert_close(got, flat, rtol=1e-9, atol=1e-9)


HALOS = {
    "adaqp": ({"period": 2}, HaloRules(period=2)),
    "sancus": ({"bound": 0.6}, HaloRules(bound=0.6, longest=10)),
    "cd-r": ({"r": 2}, HaloRules(turns=2, read=lambda step: step - 2 if step >= 2 else None)),
}


@pytest.mark.parametrize("narrow", [False, True], ids=["published", "narrow"])
@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize("name", HALOS)
def test_partial_halos_equal_their_equations(name, model, narrow):
    options, rules = HALOS[name]
    graph, assignment = CASE(3)
    part = torch.from_numpy(assignment.part.copy())
    losses, grads = halo_trace(graph, part, SPECS[model], rules, STEPS, narrow_first=narrow, weighed=False)
    written = in_pyg(SPECS[model], graph)
    for got_losses, got_grads in run_threads(3, trace, written, STRATEGIES.make(name, **options, narrow=narrow)):
        torch.testing.assert_close(got_losses, losses, rtol=1e-9, atol=1e-9)
        for got, want in zip(got_grads, grads, strict=True):
            flat = {key: value.flatten() for key, value in want.items()}
            torch.testing.assert_close(got, flat, rtol=1e-9, atol=1e-9)


def test_a_sampled_halo_is_refused():
    """It is unknown what a module does with missing rows."""
    with pytest.raises(InputError, match="use one of our models, or share=1"):
        run_threads(2, trace, in_pyg(SPECS["sage"], CASE(2)[0]), STRATEGIES.make("bns"))
