"""Weight gradients in a user's loop: layers that begin later, sums over several steps, dropout in place."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.testing import run_threads

pytest.importorskip("torch_geometric", reason="PyG is an extra")

from tests.own_model.mixing import HIDDEN, Base, between
from tests.own_model.nets import case_graph, shard_of

STEPS = 6


class BegunLater(Base):
    """One layer has no gradient in the first steps, and one never has."""

    def made(self):
        self.later, self.never = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def between(self, h, x, e):
        return self.later(h) if self.calls > 3 else h


OPTIMIZERS = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01, eps=1e-3),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.5, eps=1e-3),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.5, weight_decay=0.1),
}
ZEROS = {
    "every step": lambda optimizer, step: optimizer.zero_grad(),
    "every second step": lambda optimizer, step: step % 2 or optimizer.zero_grad(),
    "to zeros": lambda optimizer, step: optimizer.zero_grad(set_to_none=False),
    "never": lambda optimizer, step: None,
}


def in_one_process(model, optimizer, zero):
    graph, model = case_graph(), copy.deepcopy(model)
    x, y, mask = torch.tensor(graph.x), torch.tensor(graph.y), torch.tensor(graph.train_mask[:, 0])
    edge_index, optimizer = torch.from_numpy(graph.edge_index.astype("int64")), optimizer(model.parameters())
    for step in range(STEPS):
        loss = F.cross_entropy(model(x, edge_index)[mask], y[mask])
        zero(optimizer, step)
        loss.backward()
        optimizer.step()
    return model.state_dict()


def on_ranks(transport, model, optimizer, zero):
    shard = shard_of(transport, case_graph())
    model = fg.distribute(copy.deepcopy(model), shard)
    optimizer, mask = optimizer(model.parameters()), shard.train_mask
    for step in range(STEPS):
        losses = F.cross_entropy(model(shard.x, shard.edge_index)[mask], shard.y[mask], reduction="none")
        zero(optimizer, step)
        fg.mean_loss(losses, shard).backward()
        fg.sync_gradients(model)
        optimizer.step()
    assert not any(p._backward_hooks for p in model.parameters())
    return model.state_dict()


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_are_those_of_one_process(optimizer, zero):
    torch.manual_seed(3)
    model = BegunLater().double()
    want = in_one_process(model, OPTIMIZERS[optimizer], ZEROS[zero])
    for got in run_threads(3, on_ranks, model, OPTIMIZERS[optimizer], ZEROS[zero]):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@between
def dropped_in_place(self, h, x, e):
    h = h * 1
    F.dropout(h, 0.999999, self.training, inplace=True)
    return h


def test_dropout_in_place_drops():
    def body(transport):
        shard = shard_of(transport, case_graph())
        model = fg.distribute(dropped_in_place().double(), shard)
        inputs = []
        model.module.second.register_forward_pre_hook(lambda module, given: inputs.append(given[0].detach()))
        model(shard.x, shard.edge_index)
        model.eval()()
        return [float((x != 0).double().mean()) for x in inputs]

    assert [[part > 0.5 for part in parts] for parts in run_threads(2, body)] == [[False, True]] * 2
