"""PyG's layers over chunks of rows are PyG's layers in one process: logits, all gradients, float64, 1 to 3 ranks."""

import copy

import pytest
import torch

import fullgraph as fg
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

from torch_geometric.nn import SAGEConv

from fullgraph.own_model.chunked.trial import tried
from tests.own_model.nets import (
    NETS,
    WIDTH,
    Net,
    arc_inputs,
    case_graph,
    cotangent,
    in_one_process,
    made,
    shard_of,
    two,
)  # fmt: skip
from tests.support import random_graph

MEMORY = "8kB"  # enough for 160 edges
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
