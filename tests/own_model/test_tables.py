"""Weights with a row per node: each rank holds its own nodes' rows, and a checkpoint holds all of them."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.storage import read_tensors
from fullgraph.testing import run_threads
from tests.own_model import users_cases as users
from tests.own_model.nets import shard_of
from tests.own_model.users_cases import NODES, users_graph
from tests.own_model.users_kinds import CASES, FILE
from tests.support import random_graph

pyg = pytest.importorskip("torch_geometric.nn")

CASE = {case.name: case for case in CASES}


class Other(torch.nn.Module):
    """Reads its table as `read` says."""

    def __init__(self, read):
        super().__init__()
        self.emb, self.conv, self.read = torch.nn.Embedding(NODES, 8), pyg.SAGEConv(8, 4), read

    def forward(self, x, edge_index):
        return self.conv(self.read(self.emb, edge_index, x), edge_index)


def own_loop(transport, model, steps=3, most=None):
    shard = shard_of(transport, users_graph())
    model = fg.distribute(model, shard)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        out = model(shard.x, shard.edge_index)[shard.train_mask]
        loss = fg.mean_loss(F.cross_entropy(out, shard.y[shard.train_mask], reduction="none"), shard)
        optimizer.zero_grad()
        loss.backward()
        fg.sync_gradients(model)
        if most is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
        losses.append(loss.detach())
    sizes = {name: weight.shape for name, weight in model.named_parameters()}
    return torch.stack(losses), model.state_dict(), sizes, len(shard.node_id)


def in_one_process(model, steps=3):
    data, losses = users.users_data(users_graph()), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), model.state_dict()


READS = {
    "sources and targets": lambda emb, e, x: emb.weight + torch.zeros_like(emb.weight).index_add(0, e[1], emb(e[0])),
    "padding": lambda emb, e, x: F.embedding(torch.arange(emb.num_embeddings), emb.weight, padding_idx=3),
    "by number": lambda emb, e, x: emb.weight[torch.arange(emb.num_embeddings)],
}


@pytest.mark.parametrize("name", READS)
def test_a_rank_holds_its_rows_and_adam_is_that_of_one_process(name):
    torch.manual_seed(1)
    model = Other(READS[name]).double()
    fresh = copy.deepcopy(model)
    losses, state = in_one_process(model)
    for ranks in (1, 3):
        seen = run_threads(ranks, lambda t: own_loop(t, copy.deepcopy(fresh)))
        torch.testing.assert_close(sum(mine for mine, _, _, _ in seen), losses, rtol=1e-10, atol=1e-10)
        for _, whole, sizes, owned in seen:
            torch.testing.assert_close(whole, dict(state), rtol=1e-10, atol=1e-10)
            assert sizes["emb.weight"] == (owned, 8)
        assert sum(owned for *_, owned in seen) == NODES


REFUSED = {
    "other rows": (
        lambda emb, e, x: emb(torch.arange(emb.num_embeddings).flip(0)),
        "rows of other nodes are read from a table",
    ),
    "a slice": (lambda emb, e, x: emb.weight[:NODES] * 1.0, "taken by their position"),
    "numbers": (lambda emb, e, x: emb((x[:, 0] > 0).long()), "rows of other nodes are read|self-check"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_of_other_nodes_are_refused(name):
    read, text = REFUSED[name]
    with pytest.raises(fg.InputError, match=text):
        run_threads(3, lambda t: own_loop(t, Other(read).double(), 1))


def test_by_the_trainer_checkpointed_resumed_and_whole(tmp_path):
    graph, model = random_graph(), f"{FILE}:BesideFeatures"
    options = {"epochs": 4, "dtype": "float64", "eval_every": 2, "checkpoint_every": 2, "optimizer": "adamw"}
    one, three = (fg.train(graph, model=model, parts=parts, out=tmp_path / f"r{parts}", **options) for parts in (1, 3))
    np.testing.assert_allclose([r.loss for r in one.metrics], [r.loss for r in three.metrics], rtol=1e-9)
    mine, theirs = (read_tensors(run.folder / "model.safetensors", fix="")[0] for run in (one, three))
    assert mine["table"].shape == (graph.num_nodes, 4)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    data = graph.to_pyg()
    out = three.model(torch.from_numpy(graph.x.copy()).double(), data.edge_index).softmax(1)
    np.testing.assert_allclose(out.detach().numpy(), three.probabilities, rtol=1e-5, atol=1e-6)
    longer, whole = (
        fg.resume(three.folder, epochs=7),
        fg.train(graph, model=model, parts=3, out=tmp_path / "whole", **{**options, "epochs": 7}),
    )
    assert [r.loss for r in longer.metrics] == [r.loss for r in whole.metrics]
    np.testing.assert_array_equal(fg.predict(longer).classes, longer.predictions)
    with pytest.raises(fg.InputError, match="a row for each node of its own graph"):
        fg.predict(three, graph=random_graph(), out=tmp_path / "other")


def test_an_optimizer_that_combines_rows_is_refused(tmp_path):
    with pytest.raises(fg.InputError, match="may combine rows of different nodes, and table, bias"):
        fg.train(random_graph(), model=f"{FILE}:BesideFeatures", optimizer="torch.optim:Adafactor", out=tmp_path / "r")


def test_inductive_training_is_refused(tmp_path):
    with pytest.raises(fg.InputError, match="inductive training never reaches"):
        fg.train(random_graph(), model=f"{FILE}:BesideFeatures", inductive=True, out=tmp_path / "r")


def test_clipping_by_a_norm_over_other_rows_is_refused():
    with pytest.raises(fg.InputError, match=r"the weight conv.* clip gradients by value"):
        run_threads(2, lambda t: own_loop(t, Other(READS["by number"]).double(), most=1e-3))
