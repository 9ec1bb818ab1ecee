"""Every layer of benchmarks/layer_nets.py on every way, number of ranks and wire: outputs and all gradients are PyG's.

With frozen weights a late wire has the exact rows and gradients after a few steps.
"""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph.axes import STRATEGIES
from fullgraph.testing import run_threads
from tests.own_model.nets import CLASSES, NODES, WIDTH, cotangent, shard_of
from tests.support import random_graph

pytest.importorskip("torch_geometric", reason="PyG is an extra")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import layer_nets

WAYS = ["kernels", "chunks"]
RANKS = [1, 2, 3]
WIRES = ["vanilla", "pipegcn", "cd-r", "sancus"]
STEPS = {"vanilla": 1, "pipegcn": 9, "cd-r": 30, "sancus": 3}  # until nothing is late: APPNP reads neighbours 3 times
OPTIONS = {"cd-r": {"r": 2}}
MEMORY = "8kB"


def graph_of_features():
    graph = random_graph(nodes=NODES, arcs=160, directed=True, features=WIDTH, classes=CLASSES, seed=2)
    attr = np.random.default_rng(0).standard_normal((graph.num_arcs, layer_nets.ARC_WIDTH))
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return fg.Graph(graph.edge_index, graph.x, graph.y, masks, edge_attr=attr)


def net_of(layer):
    torch.manual_seed(1)
    kind = layer_nets.OneLayer if layer in layer_nets.PLAIN else layer_nets.OneFeaturedLayer
    return kind(WIDTH, CLASSES, layer=layer, hidden=8).double()


def in_one_process(net, layer, graph):
    inputs = [torch.from_numpy(graph.x.copy()), torch.from_numpy(graph.edge_index).long()]
    out = net(*inputs, *[torch.from_numpy(graph.edge_attr.copy())][: layer in layer_nets.FEATURED])
    (out * cotangent(torch.arange(NODES), out)).sum().backward()
    return out.detach(), {name: p.grad for name, p in net.named_parameters()}


def on_ranks(transport, net, layer, graph, wire, memory):
    shard, strategy = shard_of(transport, graph), STRATEGIES.make(wire, **OPTIONS.get(wire, {}))
    model = fg.distribute(copy.deepcopy(net), shard, strategy, check=False, message_memory=memory)
    for _ in range(STEPS[wire]):
        model.zero_grad()
        out = model(shard.x, shard.edge_index, *[shard.edge_attr][: layer in layer_nets.FEATURED])
        (out * cotangent(shard.full.ids, out)).sum().backward()
        fg.sync_gradients(model)
    return shard.full.ids, out.detach(), {name: p.grad for name, p in model.named_parameters()}, model.on_rows.chunks


@pytest.mark.sweep
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layer", list(layer_nets.LAYERS))
def test_equal_to_pyg(layer, way, ranks, wire, monkeypatch):
    if way == "chunks":
        monkeypatch.setattr("fullgraph.own_model.fast.FAST", {})
    graph, net = graph_of_features(), net_of(layer)
    values = run_threads(ranks, on_ranks, net, layer, graph, wire, MEMORY if way == "chunks" else "auto")
    out, grads = in_one_process(net, layer, graph)
    for ids, rows, mine, chunks in values:
        torch.testing.assert_close(rows, out[ids], rtol=1e-9, atol=1e-9)
        for name, grad in grads.items():
            zero = torch.zeros_like(dict(net.named_parameters())[name])
            found = zero if mine[name] is None else mine[name]
            torch.testing.assert_close(found, zero if grad is None else grad, rtol=1e-9, atol=1e-9, msg=name)
        assert way == "kernels" or max(chunks.counts.values()) > 1
