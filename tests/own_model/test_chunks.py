"""PyG's layers over chunks of rows are PyG's layers in one process: logits, all gradients, float64, 1 to 3 ranks."""

import copy
import itertools

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

import torch_geometric.nn as pyg
from torch_geometric.nn import SAGEConv

from fullgraph.own_model.chunked.trial import tried
from fullgraph.own_model.live import Readings
from tests.own_model.nets import (
    ARC_WIDTH,
    NETS,
    WIDTH,
    Net,
    arc_inputs,
    case_graph,
    cotangent,
    in_one_process,
    made,
    mlp,
    pna,
    shard_of,
    two,
)  # fmt: skip
from tests.support import random_graph

MEMORY = "5kB"  # enough for 100 edges
LAYERS = [name for name in NETS if name not in ("by hand", "normed")]  # "by hand" has no PyG layer, "normed" only SAGE


def on_ranks(transport, name, state):
    shard = shard_of(transport, case_graph())
    net = made(name)
    if state is not None:
        net.load_state_dict(state)
    model = fg.distribute(net, shard, check=False, message_memory=MEMORY)
    start = copy.deepcopy(model.state_dict())
    inputs = arc_inputs(model.module, name, shard.edge_weight, shard.edge_attr)
    outs = []
    for _ in range(2):  # the second step uses the trial of the first
        model.load_state_dict(start)
        model.zero_grad()
        out = model(shard.x, shard.edge_index, **inputs)
        (out * cotangent(shard.full.ids, out)).sum().backward()
        fg.sync_gradients(model)
        outs.append(out.detach())
    assert torch.equal(*outs)
    counts = model.on_rows.chunks.counts
    return shard.full.ids, out.detach(), {key: p.grad for key, p in model.named_parameters()}, start, counts


def compare(name, ranks):
    values = run_threads(ranks, on_ranks, name, None)
    logits, grads, _ = in_one_process(name, values[0][3])
    for ids, rows, mine, _, _ in values:
        torch.testing.assert_close(rows, logits[ids], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(mine, grads, rtol=1e-9, atol=1e-9)
    return [counts for *_, counts in values]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_chunks_are_pygs_layers(name, ranks, monkeypatch):
    """Without kernels, so that every layer runs in chunks."""
    monkeypatch.setattr("fullgraph.own_model.fast.FAST", {})
    for counts in compare(name, ranks):
        assert counts
        assert max(counts.values()) > 1


@pytest.mark.parametrize("name", LAYERS)
def test_kernels_and_chunks_together(name):
    compare(name, 2)


@pytest.mark.parametrize("edges", [4_000, 40_000])
def test_a_trial_counts_its_own_edges_alone(edges, monkeypatch):
    """A chunk's size does not depend on the number of edges outside of the trial, which its tensors are views of."""
    monkeypatch.setattr("fullgraph.own_model.fast.FAST", {})
    graph = random_graph(nodes=400, arcs=edges, directed=True, features=WIDTH, classes=3, seed=1)

    def bytes_of_an_edge(transport):
        shard = shard_of(transport, graph)
        found = []
        monkeypatch.setattr("fullgraph.own_model.chunked.layer.tried", lambda *a: found.append(tried(*a)) or found[-1])
        fg.distribute(two(Net, SAGEConv).double(), shard, check=False, message_memory=MEMORY)(shard.x, shard.edge_index)
        return found[0].arc_bytes

    [nbytes] = run_threads(1, bytes_of_an_edge)
    assert WIDTH * 8 <= nbytes < 10 * WIDTH * 8


def of_one(layer, *, width=32, featured=False):
    """A linear map, and a layer of that width."""

    class OneLayer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.conv = torch.nn.Linear(WIDTH, width), layer(width)

        def forward(self, x, edge_index, edge_attr):
            return self.conv(self.encoder(x), edge_index, *[edge_attr] * featured)

    return OneLayer()


SIZED = {
    "gatv2": lambda: of_one(lambda w: pyg.GATv2Conv(w, w // 2, heads=2)),
    "transformer": lambda: of_one(lambda w: pyg.TransformerConv(w, w // 2, heads=2)),
    "arma": lambda: of_one(lambda w: pyg.ARMAConv(w, w)),
    "pna": lambda: of_one(lambda w: pna(w, w)),
    "edge conv": lambda: of_one(lambda w: pyg.EdgeConv(mlp(2 * w, w))),
    "nn": lambda: of_one(lambda w: pyg.NNConv(w, w, mlp(ARC_WIDTH, w * w)), width=8, featured=True),
    "gen": lambda: of_one(lambda w: pyg.GENConv(w, w, edge_dim=ARC_WIDTH), featured=True),
    "supergat": lambda: of_one(lambda w: pyg.SuperGATConv(w, w // 2, heads=2)),
    "film": lambda: of_one(lambda w: pyg.FiLMConv(w, w)),
}


def peak_of(run):
    """The most bytes of torch's allocations that exist at the same time, as torch's profiler counts them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [(e.start_ns(), e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(nbytes for _, nbytes in sorted(events, key=lambda event: event[0])))


@pytest.mark.parametrize("name", SIZED)
def test_messages_and_their_gradients_take_no_more_than_the_limit(name, monkeypatch):
    """Of two steps, one with a quarter of the limit, the difference is three quarters of what the messages take."""
    monkeypatch.setattr("fullgraph.own_model.fast.FAST", {})
    monkeypatch.setattr("fullgraph.own_model.module.self_check", lambda *_, **__: (Readings(), ""))  # the guard remains
    limit = 2 << 20
    base = random_graph(nodes=100, arcs=6_000, directed=True, features=WIDTH, classes=3, seed=1)
    attr = np.random.default_rng(0).standard_normal((base.num_arcs, ARC_WIDTH))
    masks = base.train_mask, base.val_mask, base.test_mask
    graph = fg.Graph(base.edge_index, base.x, base.y, masks, edge_attr=attr)

    def on_one_rank(transport, memory):
        shard = shard_of(transport, graph)
        model = fg.distribute(SIZED[name]().double(), shard, message_memory=str(memory))

        def step():
            model(shard.x, shard.edge_index, shard.edge_attr).square().sum().backward()
            fg.sync_gradients(model)
            model.zero_grad()

        step()  # with a trial
        assert max(model.on_rows.chunks.counts.values()) > 1
        return peak_of(step)

    more, less = (run_threads(1, on_one_rank, memory)[0] for memory in (limit, limit // 4))
    assert 0.2 * limit < (more - less) * 4 / 3 <= 1.05 * limit
