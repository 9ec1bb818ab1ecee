"""Layers of a user's model that compute only the rows which the loss reads: losses and gradients of all rows."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.axes import STRATEGIES
from fullgraph.codec import Half
from fullgraph.exchange import Bounded, Wire
from fullgraph.own_model.live_view import LiveView
from fullgraph.own_model.spec import spec_of
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import Partitioned
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.trainer import logits_of
from tests.support import random_graph
from tests.support.bodies import Given

pyg = pytest.importorskip("torch_geometric.nn", reason="PyG is an extra")

EXACT = STRATEGIES.make("vanilla")
NODES, STEPS, WIDTH, CLASSES, EDGE_WIDTH = 90, 4, 6, 4, 3


def case(parts, *, trained=(3, 17, 41)):
    """Few edges and few training nodes, so that even three layers do not reach all of the graph."""
    train = np.isin(np.arange(NODES), trained)
    graph = random_graph(
        nodes=NODES, arcs=80, train=train, directed=True, weighted=True, features=WIDTH, classes=CLASSES
    )
    attr = np.random.default_rng(0).standard_normal((graph.num_arcs, EDGE_WIDTH))
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    graph = fg.Graph(graph.edge_index, graph.x, graph.y, masks, edge_weight=graph.edge_weight, edge_attr=attr)
    part = np.random.default_rng(2).integers(0, parts, NODES).astype(np.int32)
    return graph, Assignment(part=part, parts=parts, method="case", seed=0)


class Plain(nn.Module):
    """Three layers of one kind, with dropout."""

    layer = partial(pyg.GATv2Conv, dropout=0.2)

    def __init__(self, in_channels, out_channels):
        super().__init__()
        widths = (in_channels, 8, 8, out_channels)
        self.convs = nn.ModuleList(type(self).layer(*ends) for ends in pairwise(widths))

    def forward(self, x, edge_index):
        for number, conv in enumerate(self.convs):
            x = conv(F.dropout(x.relu(), 0.3, self.training) if number else x, edge_index)
        return x


class Weighted(Plain):
    def forward(self, x, edge_index, edge_weight):
        for number, conv in enumerate(self.convs):
            x = conv(x.relu() if number else x, edge_index, edge_weight)
        return x


class Featured(Plain):
    """Features of edges, which the model maps before its second layer."""

    layer = partial(pyg.GATv2Conv, edge_dim=EDGE_WIDTH)

    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.edges = nn.Linear(EDGE_WIDTH, EDGE_WIDTH)

    def forward(self, x, edge_index, edge_attr):
        for number, conv in enumerate(self.convs):
            x = conv(x.tanh(), edge_index, self.edges(edge_attr) if number == 1 else edge_attr)
        return x


class Jumping(Plain):
    """Jumping knowledge and residuals; the input is read by all layers; rows are divided by their norm."""

    layer = pyg.SAGEConv

    def __init__(self, in_channels, out_channels):
        super().__init__(8, 8)
        self.encoder, self.head = nn.Linear(in_channels, 8), nn.Linear(24, out_channels)

    def forward(self, x, edge_index):
        x, seen = self.encoder(x), []
        for conv in self.convs:
            x = x + F.dropout(conv(x, edge_index), 0.2, self.training)
            x = x / x.norm(dim=1, keepdim=True)
            seen.append(x)
        return self.head(torch.cat(seen, 1))


class Shared(nn.Module):
    """One layer called three times."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.encoder, self.conv = nn.Linear(in_channels, 8), pyg.GATv2Conv(8, 4, heads=2, dropout=0.3)
        self.head = nn.Linear(8, out_channels)

    def forward(self, x, edge_index):
        x = self.encoder(x)
        for _ in range(3):
            x = x + self.conv(x, edge_index).relu()
        return self.head(x), x


class Initial(nn.Module):
    """GCN2 reads the first rows in every layer."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.encoder, self.head = nn.Linear(in_channels, 8), nn.Linear(8, out_channels)
        self.convs = nn.ModuleList(pyg.GCN2Conv(8, 0.1, 0.5, layer) for layer in (1, 2, 3))

    def forward(self, x, edge_index):
        x = first = self.encoder(x).relu()
        for conv in self.convs:
            x = conv(x, first, edge_index).relu()
        return self.head(x)


class Mixed(nn.Module):
    """Layers without a kernel, one of three hops, and a reading by hand beside layers with one."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first, self.second = pyg.GATv2Conv(in_channels, 8), pyg.TAGConv(8, 8, K=2)
        self.third = pyg.GCNConv(8, out_channels)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        row, col = edge_index
        x = x + torch.zeros_like(x).index_add(0, col, x[row].tanh())
        return self.third(x, edge_index)


class Normed(nn.Module):
    """A batch norm after the first layer of two."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first, self.second = pyg.GCNConv(in_channels, 8), pyg.GCNConv(8, out_channels)
        self.norm, self.end = nn.BatchNorm1d(8), nn.Identity()

    def forward(self, x, edge_index):
        return self.end(self.second(self.norm(self.first(x, edge_index)).relu(), edge_index))


class NormedAtTheEnd(Normed):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.end = nn.BatchNorm1d(out_channels)


class Reversed(Plain):
    """Messages against the edges after the first layer."""

    layer = pyg.SAGEConv

    def forward(self, x, edge_index):
        x = self.convs[0](x, edge_index).relu()
        x = x + torch.zeros_like(x).index_add(0, edge_index[0], x[edge_index[1]].tanh())
        return self.convs[2](self.convs[1](x, edge_index).relu(), edge_index)


class Keeping(Plain):
    """Averages its rows with those of the step before."""

    before = None

    def forward(self, x, edge_index):
        x = self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)
        if self.training:
            x, self.before = x if self.before is None else (x + self.before) / 2, x.detach()
        return self.convs[2](x, edge_index)


class Counting(Plain):
    """Centres its rows from the fourth step on, which the self-check does not reach."""

    steps = 0

    def forward(self, x, edge_index):
        self.steps += self.training
        x = self.convs[0](x, edge_index).relu()
        x = x - x.mean(0) if self.steps > 3 else x
        return self.convs[2](self.convs[1](x, edge_index).relu(), edge_index)


def gin(width, out):
    parts = (nn.Linear(width, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, out))
    return pyg.GINConv(nn.Sequential(*parts), train_eps=True)


class Wide(nn.Module):
    """Every layer sends eight columns."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.head = nn.Linear(8, out_channels)
        self.convs = nn.ModuleList(pyg.GATv2Conv(width, 8) for width in (in_channels, 8, 8))

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.head(x)


class GAT(Plain):
    layer = pyg.GATConv


class GCN(Plain):
    layer = pyg.GCNConv


class WeightedGCN(Weighted):
    layer = pyg.GCNConv


class WeightedGraph(Weighted):
    layer = partial(pyg.GraphConv, aggr="mean")


class SAGEMax(Plain):
    layer = partial(pyg.SAGEConv, aggr="max")


class SAGE(Plain):
    layer = pyg.SAGEConv


class SAGEMany(Plain):
    layer = partial(pyg.SAGEConv, aggr=["mean", "std", "max"])


class PNA(Plain):
    layer = partial(
        pyg.PNAConv, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=torch.ones(4)
    )


class Transformer(Plain):
    layer = pyg.TransformerConv


class ResGated(Plain):
    layer = pyg.ResGatedGraphConv


class GIN(Plain):
    layer = partial(gin)


NETS = (
    Plain, Featured, GAT, GCN, WeightedGCN, WeightedGraph, SAGEMax, SAGE, SAGEMany, Transformer, ResGated, GIN, Jumping,
    PNA, Shared, Initial, Mixed, Normed,
)  # fmt: skip


def trace(transport, graph, model, strategy, **options):
    graph, assignment = graph(transport.size)
    config = TrainConfig(epochs=STEPS, lr=0.05, seed=3, dtype="float64", optimizer="sgd", **options)
    run = Run(model=spec_of(model)(), strategy=strategy, train=config)
    trainer = build_trainer(run, cut_parts(graph, assignment, transport.rank), transport)
    losses, grads = [], []
    trainer.optimizer.zero_grad = lambda set_to_none=True: None
    for _ in range(STEPS):
        for weight in trainer.model.parameters():
            weight.grad = None
        loss, tally = trainer.train_step()
        losses.append(float(loss))
        trainer.shard.clock.losses.append(losses[-1])
        grads.append({name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None})
    live = trainer.model.on_rows.live
    rows = None if live is None else [None if part is None else rows_of(part) for part in live.parts]
    return {
        "losses": losses, "grads": grads, "rows": rows, "sent": tally.halo_bytes, "ids": trainer.shard.full.ids,
        "logits": logits_of(trainer.model, trainer.shard),
    }  # fmt: skip


def rows_of(part):
    return len(part.picked.computed_t) if isinstance(part, LiveView) else int(part.need.live_n.sum())


def compare(model, ranks, strategy=EXACT, graph=case, run=run_threads, **options):
    """The ranks' traces with live rows, which equal those with all rows."""
    body = partial(trace, graph=graph, model=model, strategy=strategy, **options)
    whole, fewer = run(ranks, partial(body, all_rows=True)), run(ranks, body)
    for all_rows, live in zip(whole, fewer, strict=True):
        assert all_rows["rows"] is None
        assert live["losses"] == pytest.approx(all_rows["losses"], rel=1e-10, abs=1e-10)
        torch.testing.assert_close(live["grads"], all_rows["grads"], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(live["logits"], all_rows["logits"], rtol=1e-10, atol=1e-10)
    return fewer


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("net", NETS)
def test_live_rows_give_losses_and_gradients_of_all_rows(net, ranks):
    found = compare(net, ranks)
    assert sum(rank["rows"][-1] for rank in found) <= 3 + ranks


WIRES = {
    **{name: STRATEGIES.make(name) for name in ("pipegcn", "pipegcn-gf", "varco-slow", "fixed", "cd-r", "none")},
    "half": Given(wire=Wire(codec=Half()), placement=Partitioned()),
    "bounded": Given(wire=Wire(schedule=Bounded(3)), placement=Partitioned()),
}


@pytest.mark.parametrize("net", [Plain, Shared])
@pytest.mark.parametrize("wire", WIRES)
def test_late_and_narrow_wires(wire, net):
    found = compare(net, 3, WIRES[wire])
    assert sum(rank["rows"][0] for rank in found) < NODES / 2


@pytest.mark.parametrize("name", ["sylvie-s", "sylvie-a"])
def test_low_bit_wires_round_other_rows_by_other_numbers(name):
    """In 8 bits what is drawn makes little difference, and the same run draws the same."""
    body = partial(trace, graph=case, model=GCN, strategy=STRATEGIES.make(name, bits=8))
    whole, fewer, again = (run_threads(3, partial(body, all_rows=rows)) for rows in (True, False, False))
    for all_rows, live, same in zip(whole, fewer, again, strict=True):
        assert live["losses"] == pytest.approx(all_rows["losses"], rel=0.02, abs=0.02)
        assert live["losses"] == same["losses"]


def test_real_processes():
    compare(Jumping, 2, run=run_processes)


def near(graph, hops, also=()):
    """The nodes that are at most so many hops from a training node or one of `also`, counted apart from the code."""
    source, target = graph.edge_index
    found = [np.array(graph.train_mask[:, 0])]
    found[0][list(also)] = True
    for _ in range(hops):
        found.append(found[-1].copy())
        found[-1][source[found[-2][target]]] = True
    return found


HOPS = [(GCN, (2, 1, 0)), (Shared, (2, 1, 0)), (Initial, (2, 1, 0)), (Mixed, (5, 0))]


@pytest.mark.parametrize(("net", "hops"), HOPS)
def test_layers_compute_only_rows_that_the_loss_reads(net, hops, monkeypatch):
    """Mixed reads neighbours six times: GATv2, TAG for its norm and two hops, by hand, GCN."""
    graph = case(1)[0]
    counted = near(graph, 5)
    computed, spread = [], LiveView.spread
    monkeypatch.setattr(LiveView, "spread", lambda part, out: computed.append(part.picked) or spread(part, out))
    (found,) = run_threads(1, partial(trace, graph=case, model=net, strategy=EXACT, check=True))
    wanted = [found["ids"].new_tensor(np.flatnonzero(counted[hop])) for hop in hops]
    last = computed[-len(hops) :]
    for picked, nodes in zip(last, wanted, strict=True):
        assert torch.equal(found["ids"][picked.computed_t].sort().values, nodes)


def test_less_is_sent():
    """A step of three layers of GATv2 sends the halo rows that each layer reads, and as many gradients back."""
    graph, assignment = case(3)
    source, target = graph.edge_index
    counted, part = near(graph, 2), assignment.part
    crossing = part[source] != part[target]
    reads = np.stack([source, part[target]])
    rows = [len(np.unique(reads[:, crossing & counted[hop][target]], axis=1).T) for hop in (1, 0)]
    found = compare(Wide, 3)
    assert sum(rank["sent"] for rank in found) == 2 * sum(rows) * 8 * 8


@pytest.mark.parametrize(
    ("net", "rows", "text"),
    [
        (Normed, 1, "needs all rows of the first 1 of 2 times that neighbours are read"),
        (Reversed, 1, "needs all rows of the first 1 of 3 times that neighbours are read"),
        (NormedAtTheEnd, 0, "training computes all rows: a norm, sum or count over nodes needs all rows of its layers"),
        (Keeping, 0, "training computes all rows: the model keeps values from step to step (before)"),
        (Counting, 0, "training computes all rows: the model keeps values from step to step (steps)"),
    ],
)
def test_rows_that_a_sum_or_a_later_step_reads_are_computed_and_said_once(net, rows, text, capsys):
    found = compare(net, 2)
    told = [line for line in capsys.readouterr().err.splitlines() if "training computes" in line]
    assert len(told) == 1
    assert text in told[0]
    for rank in found:
        assert (rank["rows"] is None) == (not rows)
        assert not rows or [part is None for part in rank["rows"][:2]] == [True, False]


def test_without_the_self_check_all_rows_are_computed(capsys):
    found = compare(GCN, 2, check=False)
    assert all(rank["rows"] is None for rank in found)
    assert "all rows: no self-check has found which of them the loss reads" in capsys.readouterr().err
