"""A user's own loop around a distributed model: dropout, refusals, steps, checkpointing, autocast, compile."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fullgraph as fg
from fullgraph.exchange import Pipelined
from fullgraph.partition import cut_parts, partition
from fullgraph.placement import Partitioned
from fullgraph.testing import run_threads
from fullgraph.transport import SingleRank

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is an extra")

from tests.own_model.nets import CLASSES, HIDDEN, NODES, WIDTH, Net, case_graph, cotangent, mlp, shard_of  # noqa: E402


class Dropping(nn.Module):
    """Dropout on inputs, rows and attention coefficients, of every kind."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GATv2Conv(WIDTH, HIDDEN, heads=2, dropout=0.4)
        self.second = pyg.TransformerConv(2 * HIDDEN, HIDDEN, dropout=0.3)
        self.third, self.drop = pyg.GATConv(HIDDEN, CLASSES, dropout=0.2), nn.Dropout(0.5)
        self.norm = pyg.BatchNorm(2 * HIDDEN)

    def forward(self, x, edge_index):
        x = F.dropout(x, 0.2, self.training)
        x = self.drop(self.norm(self.first(x, edge_index)).relu())
        x = F.dropout(self.second(x, edge_index), training=self.training)
        return self.third(x, edge_index)


def steps(transport, model, num_steps, *, graph=None, strategy=None, wire=None, check=False, **options):
    """Logits and gradients of some steps, the last weights, and the exact scores."""
    shard = shard_of(transport, graph or case_graph(), **options)
    model = fg.distribute(copy.deepcopy(model).double(), shard, strategy=strategy, wire=wire, check=check)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, grads = [], []
    for _ in range(num_steps):
        model.train()
        out = model(shard.x, shard.edge_index)
        rows = shard.train_mask
        loss = fg.mean_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="none"), shard)
        optimizer.zero_grad()
        loss.backward()
        fg.sync_gradients(model)
        optimizer.step()
        losses.append(loss.detach())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    scores = fg.evaluate(model, shard)
    model.eval()
    with torch.no_grad():
        logits = fg.gather_rows(model(), shard)
    return {"losses": torch.stack(losses), "grads": grads, "logits": logits, "scores": scores}


def same(model, num_steps=3, **options):
    """Three ranks compute the same as one."""
    one = run_threads(1, lambda t: steps(t, model, num_steps, **options))[0]
    many = run_threads(3, lambda t: steps(t, model, num_steps, **options))
    torch.testing.assert_close(sum(m["losses"] for m in many), one["losses"], rtol=1e-9, atol=1e-9)
    for value in many:
        torch.testing.assert_close(value["grads"], one["grads"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(value["logits"], one["logits"], rtol=1e-9, atol=1e-9)
        assert value["scores"] == pytest.approx(one["scores"])
    return one


@pytest.mark.parametrize("options", [{}, {"inductive": True}], ids=["transductive", "inductive"])
def test_dropout_does_not_depend_on_the_number_of_ranks(options):
    model = Dropping()
    kept = same(model, **options)
    other = run_threads(1, lambda t: steps(t, _without_dropout(model), 3, **options))[0]
    assert not torch.allclose(kept["losses"], other["losses"])


def _without_dropout(model):
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model


def test_scores_and_logits_are_pygs():
    torch.manual_seed(0)
    graph, model = case_graph(), Net(pyg.SAGEConv(WIDTH, HIDDEN), pyg.GATConv(HIDDEN, CLASSES)).double()
    got = run_threads(3, lambda t: steps(t, model, 1))[0]
    assert set(got["scores"]) == {"train", "val", "test"}
    edge_index = torch.from_numpy(graph.edge_index.astype(np.int64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows, test, x, y = (torch.tensor(a) for a in (graph.train_mask[:, 0], graph.test_mask[:, 0], graph.x, graph.y))
    F.cross_entropy(model(x, edge_index)[rows], y[rows]).backward()
    optimizer.step()
    logits = model.eval()(x, edge_index)
    torch.testing.assert_close(got["logits"], logits.detach(), rtol=1e-9, atol=1e-9)
    right = (logits.argmax(1) == y)[test].double().mean()
    assert got["scores"]["test"] == pytest.approx(float(right))


class Meaning(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.conv, self.what = pyg.GCNConv(WIDTH, CLASSES), what

    def forward(self, x, edge_index):
        return self.what(self.conv(x, edge_index), edge_index)


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.mix = pyg.GCNConv(WIDTH, HIDDEN), nn.MultiheadAttention(HIDDEN, 2)

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index)
        return self.mix(x, x, x, need_weights=False)[0]


class Centring(Meaning):
    def __init__(self):
        super().__init__(None)
        self.centre = Centred()

    def forward(self, x, edge_index):
        return self.centre(self.conv(x, edge_index))


SILENT = {
    "attention over nodes": (Attentive, r"MultiheadAttention \(layer mix\): .* mixes rows of nodes"),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_looks_further_is_found(name):
    make, text = SILENT[name]
    with pytest.raises(fg.InputError, match=text):
        run_threads(2, lambda t: steps(t, make(), 1, check=True))


REFUSED = {
    "a pooling": (lambda: Meaning(pyg.TopKPooling(CLASSES)), r"TopKPooling \(what\) is a pooling"),
    "an instance norm": (lambda: Meaning(pyg.InstanceNorm(CLASSES)), r"InstanceNorm \(what\) is a norm over all"),
    "attention of all": (lambda: pyg.GPSConv(WIDTH, None), "attention between all nodes"),
    "one row": (lambda: Meaning(lambda x, _: pyg.global_add_pool(x, None)), "logits, one row per node"),
    "other draws": (lambda: Meaning(lambda x, _: x + torch.poisson(x.abs())), "poisson.* use F.dropout"),
    "a table of nodes": (
        lambda: Meaning(lambda x, e: pyg.SimpleConv()(torch.ones(NODES, 3).double(), e)),
        r"returned shape \(40, 3\) for a graph of 20 nodes.*every node of 40 into the graph",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(fg.InputError, match=text):
        run_threads(2, lambda t: steps(t, make(), 1, check=True))


MADE_RIGHT = {
    "the size of the graph": lambda: Meaning(lambda x, _: x / len(x)),
    "the mean in-degree": lambda: Meaning(lambda x, e: x * e.shape[1] / len(x)),
    "a mean over nodes": Centring,
    "a pooled row": lambda: Meaning(lambda x, _: x + pyg.global_mean_pool(x, None)),
}


@pytest.mark.parametrize("name", MADE_RIGHT)
def test_sums_over_nodes_are_sums_over_ranks(name):
    torch.manual_seed(0)
    model = MADE_RIGHT[name]().double()
    one, three = (run_threads(ranks, lambda t: steps(t, copy.deepcopy(model), 2, check=True))[0] for ranks in (1, 3))
    torch.testing.assert_close(three["logits"], one["logits"], rtol=1e-9, atol=1e-9)


def test_a_good_model_passes_its_check():
    run_threads(2, lambda t: steps(t, Dropping(), 1, check=True))
    run_threads(
        2, lambda t: steps(t, pyg.GIN(WIDTH, HIDDEN, 2, CLASSES, norm="batch_norm", dropout=0.3), 1, check=True)
    )


class TestSteps:
    """Own loops that would silently be wrong."""

    @pytest.fixture
    def shard(self):
        return shard_of(SingleRank(), case_graph())

    @pytest.fixture
    def model(self, shard):
        return fg.distribute(pyg.GCN(WIDTH, HIDDEN, 2, CLASSES).double(), shard, strategy="pipegcn", check=False)

    def test_two_forwards_in_a_step(self, model, shard):
        model(shard.x, shard.edge_index)
        with pytest.raises(fg.InputError, match=r"two forwards in one step.*sync_gradients"):
            model(shard.x, shard.edge_index)

    def test_a_step_that_was_not_begun(self, model, shard):
        with pytest.raises(fg.InputError, match="no step was begun"):
            fg.sync_gradients(model)
        with pytest.raises(fg.InputError, match=r"no step was begun.*tick"):
            model(model.shard.train.x, model.shard.train.view)

    def test_two_forwards_in_a_trainers_step(self, model):
        rows = model.shard.train
        model.shard.clock.tick()
        model(rows.x, rows.view)
        with pytest.raises(fg.InputError, match="two forwards in step 0"):
            model(rows.x, rows.view)

    def test_evaluation_in_training_mode(self, model, shard):
        with torch.no_grad(), pytest.raises(fg.InputError, match=r"model\.eval\(\)"):
            model(shard.x, shard.edge_index)

    def test_evaluation_through_the_training_view(self, model):
        rows = model.shard.train
        with pytest.raises(fg.InputError, match="evaluation through the training view"):
            model.eval()(rows.x, rows.view)

    def test_wrong_inputs(self, model, shard):
        with pytest.raises(fg.InputError, match="not this shard's"):
            model(shard.x, shard.edge_index[:, 1:])
        with pytest.raises(fg.InputError, match="x has 3 rows"):
            model(shard.x[:3])
        with pytest.raises(fg.InputError, match="one loss per row"):
            fg.mean_loss(torch.tensor(1.0), shard)
        with pytest.raises(fg.InputError, match="owns 40 nodes"):
            fg.gather_rows(torch.zeros(3), shard)
        with pytest.raises(fg.InputError, match=r"takes a torch\.nn\.Module"):
            fg.distribute("gcn", shard)
        with pytest.raises(fg.InputError, match=r"mixgcn.*for yours use one of vanilla"):
            fg.distribute(nn.Identity(), shard, strategy="mixgcn")

    def test_state_dict_keeps_names(self, model):
        assert set(model.state_dict()) == set(pyg.GCN(WIDTH, HIDDEN, 2, CLASSES).state_dict())


def slip(body, ranks, wire):
    """The error for a mistake in a loop around one of our models."""
    graph = case_graph()

    def rank(transport):
        part = cut_parts(graph, partition(graph, ranks, method="random", seed=0), transport.rank)
        shard = Partitioned().place(part, transport, wire, "mean")
        model = fg.nn.GraphSAGE(layers=2, hidden=8).build(shard.in_width, shard.num_classes, seed=0)
        return body(model, shard)

    return run_threads(ranks, rank)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("wire", [fg.Wire(), fg.Wire(schedule=Pipelined(1))], ids=["fresh", "stale"])
class TestOurOwnModels:
    """The same mistakes with one of our models, on fresh and on stale wires."""

    def test_a_step_that_was_not_begun(self, ranks, wire):
        with pytest.raises(fg.InputError, match=r"no step was begun: call shard\.clock\.tick"):
            slip(lambda model, shard: model(shard.train.x, shard.train.view), ranks, wire)

    @pytest.mark.parametrize("mode", [True, False])
    def test_two_forwards_in_a_step(self, ranks, wire, mode):
        def body(model, shard):
            shard.clock.tick()
            model(shard.train.x, shard.train.view)
            model.train(mode)(shard.train.x, shard.train.view)

        with pytest.raises(fg.InputError, match=r"two forward passes in step 0.*evaluate through shard\.full\.view"):
            slip(body, ranks, wire)

    @pytest.mark.parametrize("mode", [True, False])
    def test_evaluation_through_the_training_view(self, ranks, wire, mode):
        def body(model, shard):
            shard.clock.tick()
            with torch.set_grad_enabled(not mode):
                model.train(mode)(shard.train.x, shard.train.view)

        with pytest.raises(fg.InputError, match=r"evaluation through the training view: call model\.eval\(\)"):
            slip(body, ranks, wire)

    def test_evaluation_through_the_full_view_needs_nothing(self, ranks, wire):
        def body(model, shard):
            shard.clock.tick()
            model(shard.train.x, shard.train.view).sum().backward()
            with torch.no_grad():
                first, again = (model.eval()(shard.full.x, shard.full.view) for _ in range(2))
            torch.testing.assert_close(first, again)
            shard.clock.tick()
            model.train()(shard.train.x, shard.train.view).sum().backward()

        slip(body, ranks, wire)


class TestShards:
    """Shards that were opened for another purpose."""

    def test_a_shard_without_its_aggregation(self):
        shard = fg.open_shard(case_graph())
        model = fg.nn.GraphSAGE(layers=2, hidden=8).build(shard.in_width, shard.num_classes, seed=0)
        with pytest.raises(fg.InputError, match=r"opened for fg\.distribute"):
            model(shard.train.x, shard.train.view)
        own = fg.distribute(pyg.GCN(WIDTH, HIDDEN, 2, CLASSES), shard)
        assert own().shape == (NODES, CLASSES)


def test_a_strategy_that_follows_the_loss_is_told_it():
    shard = shard_of(SingleRank(), case_graph())
    recipe = fg.recipes.sylvie_a(adaptive=True, tau=1)
    model = fg.distribute(pyg.GCN(WIDTH, HIDDEN, 2, CLASSES).double(), shard, recipe, check=False)
    for step in range(3):
        loss = fg.mean_loss(model(shard.x, shard.edge_index).square(), shard)
        loss.backward()
        if not step:
            with pytest.raises(fg.InputError, match=r"sync_gradients\(model, loss\)"):
                fg.sync_gradients(model)
        fg.sync_gradients(model, loss)
        assert shard.clock.losses[-1] == pytest.approx(float(loss.detach()))


class Checkpointed(nn.Module):
    """The backward pass recomputes the middle of the model."""

    def __init__(self, **options):
        super().__init__()
        self.first, self.second = pyg.SAGEConv(WIDTH, HIDDEN), pyg.GATConv(HIDDEN, CLASSES)
        self.rows, self.options = mlp(HIDDEN, HIDDEN, norm=True), options

    def middle(self, x, edge_index):
        x = F.dropout(self.rows(self.first(x, edge_index)).relu(), 0.3, self.training)
        return self.second(x, edge_index)

    def forward(self, x, edge_index):
        x = x + 0 * self.first.lin_l.bias.sum()  # rows with a gradient
        if not self.options:
            return self.middle(x, edge_index)
        return checkpoint(self.middle, x, edge_index, **self.options)


@pytest.mark.parametrize(
    "options",
    [{"context_fn": fg.checkpoint_context}, {}, {"use_reentrant": True}],
    ids=["ours", "default", "reentrant"],
)
def test_activation_checkpointing(options):
    torch.manual_seed(1)
    plain = Checkpointed()
    again = Checkpointed(**({"use_reentrant": False} | options))
    again.load_state_dict(plain.state_dict())
    one, other = same(plain), same(again)
    torch.testing.assert_close(one["grads"], other["grads"], rtol=1e-12, atol=1e-12)


def test_a_context_of_the_users_is_refused():
    model = Checkpointed(use_reentrant=False, context_fn=lambda: (nullcontext(), nullcontext()))
    with pytest.raises(fg.InputError, match=r"context_fn=fg\.checkpoint_context"):
        run_threads(2, lambda t: steps(t, model, 1))


class OnTheHost(Checkpointed):
    """What the backward pass needs is kept elsewhere, and computed once."""

    def forward(self, x, edge_index):
        with torch.autograd.graph.save_on_cpu():
            return self.middle(x, edge_index)


def test_tensors_that_are_saved_elsewhere():
    same(OnTheHost(), check=True)


class Unmoved(Checkpointed):
    """The input of the checkpoint has no gradient."""

    def forward(self, x, edge_index):
        x = self.rows(self.first(x, edge_index)).relu()
        return checkpoint(self.second, x.detach(), edge_index, **self.options) + self.second(x, edge_index)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_rows_without_gradients(reentrant):
    """Torch's reentrant checkpoint gives its weights no gradients then, on ranks as in one process."""
    torch.manual_seed(1)
    same(Unmoved(use_reentrant=reentrant), check=True)


def test_a_compiled_model_runs_as_written():
    torch.manual_seed(1)
    plain = Net(pyg.GCNConv(WIDTH, HIDDEN), pyg.GCNConv(HIDDEN, CLASSES))
    want = same(plain, 1)
    got = run_threads(1, lambda t: steps(t, torch.compile(plain), 1))[0]
    torch.testing.assert_close(got["grads"], want["grads"])


def autocast_step(transport, model):
    shard = shard_of(transport, case_graph())
    model = fg.distribute(copy.deepcopy(model).double().float(), shard, check=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(shard.x.float(), shard.edge_index)
    (out.float() * cotangent(shard.full.ids, out)).sum().backward()
    fg.sync_gradients(model)
    return {name: p.grad for name, p in model.named_parameters()}


def test_autocast():
    model = Net(pyg.SAGEConv(WIDTH, HIDDEN), pyg.GATv2Conv(HIDDEN, CLASSES))
    one, many = run_threads(1, autocast_step, model)[0], run_threads(3, autocast_step, model)
    for name, grad in one.items():
        torch.testing.assert_close(many[0][name], grad, rtol=0.1, atol=0.05 * float(grad.abs().max() + 1))


@pytest.mark.parametrize("strategy", ["none", "pipegcn", "sylvie-s", "varco", "fixed"])
def test_every_wire_trains(strategy):
    got = run_threads(3, lambda t: steps(t, Dropping(), 4, strategy=strategy))
    assert all(torch.isfinite(value["losses"]).all() for value in got)
    torch.testing.assert_close(got[0]["logits"], got[2]["logits"])
