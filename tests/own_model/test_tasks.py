"""A user's own module, written for PyG, on other tasks than classes: equal to PyG in one process."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.own_model.spec import spec_of
from fullgraph.partition import Assignment
from fullgraph.tasks import Link
from fullgraph.tasks.decoder import as_decoder
from fullgraph.testing import run_threads
from tests.support import assert_same, random_graph, train_trace

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATv2Conv, SAGEConv

NODES, STEPS, SEED = 60, 3, 3


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels, hidden=8):
        super().__init__()
        self.one, self.two = SAGEConv(in_channels, hidden), GATv2Conv(hidden, out_channels, heads=2, concat=False)
        self.norm = torch.nn.BatchNorm1d(hidden)

    def forward(self, x, edge_index):
        return self.two(self.norm(self.one(x, edge_index)).relu(), edge_index)


class Bilinear(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin = torch.nn.Linear(width, width)

    def forward(self, a, b):
        return (a * self.lin(b)).sum(1)


SPEC, TASK = spec_of(Net)(), Link(embedding=5, decoder=as_decoder(Bilinear)())


def cut(graph, parts):
    part = np.random.default_rng(1).integers(0, parts, NODES).astype(np.int32)
    return graph, Assignment(part, parts, "case", 0)


def with_pairs(parts):
    base, rng = random_graph(nodes=NODES, arcs=150), np.random.default_rng(2)
    pairs = {"pairs": rng.integers(0, NODES, (2, 90)), "pair_y": rng.integers(0, 2, 90)}
    pairs |= {f"pair_{name}_mask": np.arange(90) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    return cut(TASK.prepared(fg.Graph(base.edge_index, base.x, pairs=pairs), SEED), parts)


def with_numbers(parts):
    base, rng = random_graph(nodes=NODES, arcs=150), np.random.default_rng(2)
    masks = [mask[:, 0] for mask in (base.train_mask, base.val_mask, base.test_mask)]
    return cut(fg.Graph(base.edge_index, base.x, rng.standard_normal((NODES, 2)), masks), parts)


def trained(graph, model, objective):
    """Adam steps of PyG's model on the whole graph."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x, arcs = torch.tensor(graph.x), torch.from_numpy(graph.edge_index.astype(np.int64))
    losses, grads = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = objective(model(x, arcs), model)
        loss.backward()
        losses.append(loss.detach())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    return torch.stack(losses), grads


def of_pairs(graph):
    chosen = graph.pairs.split == 0
    (u, v), y = torch.tensor(graph.pairs.ends[chosen]).T, torch.tensor(graph.pairs.y[chosen]).double()
    return lambda out, model: F.binary_cross_entropy_with_logits(model.pair_decoder(out[u], out[v]), y)


def of_numbers(graph):
    rows, y = torch.tensor(graph.train_mask[:, 0]), torch.tensor(graph.y)
    return lambda out, model: F.mse_loss(out[rows], y[rows])


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["link", "regression"])
def test_equal_to_pyg_in_one_process(kind, ranks):
    case, task, of = (with_pairs, TASK, of_pairs) if kind == "link" else (with_numbers, "auto", of_numbers)
    graph, _ = case(1)
    model = SPEC.build(graph.num_features, 5 if kind == "link" else 2, seed=SEED, dtype=torch.float64)
    if kind == "link":
        task.equip(model, seed=SEED, dtype=torch.float64)
    want = trained(graph, model, of(graph))
    assert any("pair_decoder" in name for name in want[1][0]) == (kind == "link")
    traces = run_threads(ranks, partial(train_trace, options={"task": task}), case, SPEC, STEPS)
    assert_same(traces, *want, tolerance=1e-9)
