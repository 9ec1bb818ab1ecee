"""Stale schedules and smoothing equal PipeGCN's equations, and with frozen weights reach the exact gradients."""

import pytest
import torch

from fullgraph import nn
from fullgraph.data import Graph
from fullgraph.exchange import Bounded, Pipelined, Skip, Smooth, Sync, Wire
from fullgraph.partition import cut_parts
from fullgraph.placement import Partitioned, known
from fullgraph.testing import run_processes, run_threads
from tests.support import CASES, assert_same, dense_trace, stale_trace, train_trace

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
SPECS = {
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "gcn": nn.GCN(layers=4, hidden=12, dropout=0.3, input_dropout=True, norm="layer"),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.0),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.2, input_dropout=True),
}
SCHEDULES = [
    Pipelined(),
    Pipelined(lag=2),
    Pipelined(warm_up=1),
    Pipelined(lag=2, warm_up=3),
    Bounded(3, warm_up=2),
    Bounded(3),
    Skip(3),
]
STEPS = 7


def oracle(case, ranks, spec, schedule, **options):
    graph, assignment = CASES[case](ranks)
    part = torch.from_numpy(assignment.part.copy())
    return stale_trace(graph, part, spec, lambda t: schedule.turn(t).read, STEPS, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_equal_their_equations(model, schedule):
    for case, ranks in (("undirected", 3), ("weighted", 2)):
        losses, grads = oracle(case, ranks, SPECS[model], schedule)
        traces = run_threads(ranks, train_trace, CASES[case], SPECS[model], STEPS, Wire(schedule=schedule))
        assert_same(traces, losses, grads)


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize(("features", "gradients"), [(True, False), (False, True), (True, True)])
def test_smoothing_equals_its_equations(model, features, gradients):
    wire = Wire(schedule=Pipelined(), smooth=Smooth(gamma=0.8, features=features, gradients=gradients))
    gammas = {"gamma_features": 0.8 * features, "gamma_gradients": 0.8 * gradients}
    losses, grads = oracle("directed", 3, SPECS[model], Pipelined(), **gammas)
    assert_same(run_threads(3, train_trace, CASES["directed"], SPECS[model], STEPS, wire), losses, grads)


@pytest.mark.parametrize("case", ["sparse", "no training nodes", "no halo", "empty parts"])
def test_awkward_parts(case):
    losses, grads = oracle(case, 3, SPECS["sage"], Pipelined())
    assert_same(
        run_threads(3, train_trace, CASES[case], SPECS["sage"], STEPS, Wire(schedule=Pipelined())), losses, grads
    )


@pytest.mark.parametrize("schedule", [Sync(), Pipelined(), Bounded(3)], ids=str)
@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat"])
def test_pipegcn_to_the_letter(model, schedule):
    """Z_t = P_in H_t W_t + P_bd H_{t-1} W_t: a layer's input crosses, even if its output is narrower, in attention
    too.
    """
    losses, grads = oracle("directed", 3, SPECS[model], schedule, narrow_first=False)
    options = (STEPS, Wire(schedule=schedule), False, True, "cpu", 0.05, False)
    assert_same(run_threads(3, train_trace, CASES["directed"], SPECS[model], *options), losses, grads)


@pytest.mark.sweep
@pytest.mark.parametrize("dense", [False, True], ids=["kept sparse", "made dense"])
@pytest.mark.parametrize("schedule", [Sync(), Pipelined()], ids=str)
@pytest.mark.parametrize("model", ["sage", "gcn", "gin", "gat"])
def test_sparse_features_are_known_ahead(model, schedule, dense, monkeypatch):
    """The first layer's input is known, or its aggregation if that is small, so nothing of it is stale."""
    monkeypatch.setattr(known, "dense_is_less", lambda entries, full: dense)
    for case in ("sparse", "wide"):
        losses, grads = oracle(case, 3, SPECS[model], schedule, narrow_first=False)
        options = (STEPS, Wire(schedule=schedule), False, True, "cpu", 0.05, False)
        traces = run_threads(3, train_trace, CASES[case], SPECS[model], *options)
        assert_same(traces, losses, grads)
        assert not any(name.startswith("layer0") for name in traces[0]["state"])


@pytest.mark.parametrize("case", ["sparse", "wide"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_how_sparse_features_are_known_does_not_depend_on_the_ranks(case, ranks):
    graph, assignment = CASES[case](ranks)
    placement = Partitioned(sends="input")

    def known(transport):
        part = cut_parts(graph, assignment, transport.rank)
        return type(placement.place(part, transport, Wire(), "mean").train.view.known).__name__

    assert set(run_threads(ranks, known)) == {"KnownHalo" if case == "wide" else "Known"}


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_without_precomputing_sparse_rows_cross_as_dense_ones_do(model):
    """If nothing is precomputed, a published strategy sends the input itself, not its map."""
    graph, assignment = CASES["wide"](3)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    dense = Graph(graph.edge_index, graph.x.toarray(), graph.y, masks)
    options = (STEPS, Wire(schedule=Pipelined()), False, False, "cpu", 0.05, False)
    as_dense = run_threads(3, train_trace, lambda ranks: (dense, assignment), SPECS[model], *options)
    traces = run_threads(3, train_trace, CASES["wide"], SPECS[model], *options)
    assert_same(traces, as_dense[0]["losses"], as_dense[0]["grads"])
    assert any(name.startswith("layer0") for name in traces[0]["state"])


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_none_trains_without_the_arcs_between_parts(model):
    graph, assignment = CASES["weighted"](3)
    source, target = graph.edge_index
    keep = assignment.part[source] == assignment.part[target]
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    cut = Graph(graph.edge_index[:, keep], graph.x, graph.y, masks, edge_weight=graph.edge_weight[keep])
    losses, grads = dense_trace(cut, SPECS[model], STEPS)
    options = (STEPS, None, False, True, "cpu", 0.05, True, True)
    assert_same(run_threads(3, train_trace, CASES["weighted"], SPECS[model], *options), losses, grads)


@pytest.mark.parametrize("schedule", [Bounded(1), Skip(1)], ids=str)
def test_settings_that_are_vanilla(schedule):
    sync, other = (
        run_threads(3, train_trace, CASES["directed"], SPECS["sage"], STEPS, Wire(schedule=s))
        for s in (Sync(), schedule)
    )
    assert_same(other, sync[0]["losses"], sync[0]["grads"])


def test_processes_equal_the_equations():
    losses, grads = oracle("directed", 3, SPECS["sage"], Bounded(3))
    traces = run_processes(3, train_trace, CASES["directed"], SPECS["sage"], STEPS, Wire(schedule=Bounded(3)))
    assert_same(traces, losses, grads)


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("kind", [nn.GraphSAGE, nn.GAT])
def test_frozen_weights_reach_the_exact_gradients(schedule, kind):
    """When weights no longer change, stale rows are correct: after layers x lag steps forward, and as many backward."""
    spec = kind(layers=3, hidden=16, dropout=0.0)
    exact, stale = (
        run_threads(3, train_trace, CASES["directed"], spec, 16, Wire(schedule=s), False, True, "cpu", 1e-300)
        for s in (Sync(), schedule)
    )
    for trace in stale:
        torch.testing.assert_close(trace["losses"][-1], exact[0]["losses"][-1], **TIGHT)
        for name, want in exact[0]["grads"][-1].items():
            torch.testing.assert_close(trace["grads"][-1][name], want, **TIGHT)
