"""Chunks of a pipeline that compute only live rows give the results of all rows."""

from functools import partial

import numpy as np
import pytest
import torch

from fullgraph import nn
from fullgraph.codec import Half
from fullgraph.exchange import Bounded, Pipelined, Wire
from fullgraph.placement import History, Pipeline
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from tests.exact.test_live_rows import CASES, few_trained
from tests.exact.test_pipeline import MESHES, SPECS, in_turn, oracle, piped, sent
from tests.support import assert_same, dense_trace, train_trace, trainer_of, whole_logits
from tests.support.bodies import differing, resumed_epochs

HISTORIES = {
    "double": History(freeze=2),
    "none": History(freeze=2, gradients="none"),
    "last": History(freeze=2, gradients="last"),
    "as the authors": History(freeze=2, late=True, dropped=True, gradients="last"),
}


def live(spec, **options):
    return {**options, "hops": spec.hops}


def equal_their_equations(case, model, mesh, history):
    """To 1e-9: where gradients are only rounding errors, as attention's last ones, Adam still makes full steps."""
    (ranks, options), spec = MESHES[mesh], SPECS[model]
    outcomes = run_threads(ranks, piped, case, spec, live(spec, **options, history=history))
    wanted = oracle(ranks, case, spec, outcomes, **history._asdict())
    assert_same([trace for trace, *_ in outcomes], *wanted, tolerance=1e-9)


def compare(case, spec, ranks, options, **others):
    """Compare with all rows, to 1e-10. Borders of stages are given if results depend on them: late or rounded
    messages.
    """
    run = partial(train_trace, narrow_first=False, options={"optimizer": "sgd"}, **others)
    whole = run_threads(ranks, partial(run, placement=partial(Pipeline, **options)), case, spec)
    fewer = run_threads(ranks, partial(run, placement=partial(Pipeline, **live(spec, **options))), case, spec)
    assert_same(fewer, whole[0]["losses"], whole[0]["grads"])
    # Evaluation computes all rows.
    torch.testing.assert_close(whole_logits(fewer, 90), whole_logits(whole, 90), rtol=1e-10, atol=1e-10)
    assert fewer[0]["scores"] == whole[0]["scores"]


@pytest.mark.parametrize("model", SPECS)
def test_every_model_equals_the_equations_of_all_rows(model):
    equal_their_equations(CASES["weighted"], model, "2 ways, 2 stages", History(freeze=2))


@pytest.mark.parametrize(("mesh", "history"), [("1 stage", "last"), ("3 stages", "none"), ("2 ways", "as the authors")])
def test_every_history(mesh, history):
    equal_their_equations(few_trained, "gcn", mesh, HISTORIES[history])


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("history", HISTORIES)
def test_every_model_mesh_and_history(model, mesh, history):
    if model != "gat" or HISTORIES[history].gradients != "last":  # which is refused
        ranks, options = MESHES[mesh]
        compare(CASES["directed"], SPECS[model], ranks, {**options, "history": HISTORIES[history]})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", ["gat", "sage"])
def test_awkward_graphs(case, model):
    """With one training node most chunks compute no rows in the last layers, and their messages are empty."""
    equal_their_equations(CASES[case], model, "3 stages", History(freeze=1))


@pytest.mark.parametrize("model", ["gcn", "gcnii"])
def test_one_chunk_of_several_parts_is_vanilla(model):
    graph, _ = few_trained(4)
    exact = dense_trace(graph, SPECS[model], part=torch.zeros(90))
    outcomes = run_threads(4, piped, few_trained, SPECS[model], live(SPECS[model], chunks=1, ways=2))
    assert_same([trace for trace, *_ in outcomes], *exact)


def test_inductive_training_has_no_other_rows():
    compare(few_trained, SPECS["gcn"], 2, {"chunks": 2}, inductive=True)


WIRES = {
    "late hops": ({"hop": Wire(schedule=Pipelined()), "cut": (3,)}, Wire()),
    "half hops": ({"hop": Wire(codec=Half()), "cut": (3,)}, Wire()),
    "late halos": ({"ways": 2}, Wire(schedule=Bounded(3))),
}


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire(wire):
    options, halos = WIRES[wire]
    for model in ("gcn", "resgcn"):
        compare(few_trained, SPECS[model], 2, {**options, "chunks": 4, "history": History(2)}, wire=halos)


def test_real_processes():
    runs = [(few_trained, SPECS[model], live(SPECS[model], ways=2, history=History(2))) for model in ("sage", "gat")]
    done = run_processes(4, in_turn, runs)
    for (_, spec, _), *outcomes in zip(runs, *done, strict=True):
        wanted = oracle(4, few_trained, spec, outcomes, freeze=2)
        assert_same([trace for trace, *_ in outcomes], *wanted, tolerance=1e-9)


def test_a_run_resumed_is_the_same_run():
    """The state includes snapshots, the last step's gradients and late hops."""
    config = TrainConfig(epochs=4, checkpoint_every=1, lr=0.05, seed=3, dtype="float64")
    options = {"ways": 2, "chunks": 3, "history": History(2, gradients="last"), "hop": Wire(schedule=Pipelined())}
    placement = partial(Pipeline, **live(SPECS["gcn"], **options))
    run = (few_trained, SPECS["gcn"], config, Wire(), False, False, placement)
    for (losses, saved), *others in run_threads(4, resumed_epochs, *run):
        for start, (again, kept) in enumerate(others):
            assert again == losses[start:]
            assert differing(kept[-1], saved[-1]) == []


def near(hops):
    """Nodes within some hops of a training node, found by following arcs backwards on the whole graph."""
    graph, _ = few_trained(1)
    source, target = graph.edge_index
    found = np.asarray(graph.train_mask[:, 0])
    for _ in range(hops):
        found = found | np.isin(np.arange(90), source[found[target]])
    return found


def seen(transport, spec, options):
    """For every layer: ids that the chunks compute, arcs that they multiply, forward and backward, and reported
    rows.
    """
    config = TrainConfig(epochs=1, dtype="float64")
    trainer = trainer_of(transport, few_trained, spec, config, placement=partial(Pipeline, **live(spec, **options)))
    rows, chunks = trainer.shard.executor.rows, trainer.shard.executor.chunks
    layers = [[rows.at(layer, chunk) for chunk in chunks] for layer in range(spec.graph_layers)]
    ids = [torch.cat([chunk.ids[: len(chunk.local)] for chunk in layer]) for layer in layers]
    arcs = [sum(chunk.forward.structure.num_arcs for chunk in layer) for layer in layers]
    back = [
        sum(chunk.backward.structure.num_arcs + chunk.backward_halo.structure.num_arcs for chunk in layer)
        for layer in layers
    ]
    return ids, arcs, back, trainer.shard.train.live, [len(chunk.span) for chunk in chunks]


def test_a_layer_computes_and_multiplies_only_what_is_read():
    spec = nn.GraphSAGE(layers=4, hidden=6)
    for ranks, ways in ((2, 1), (2, 2)):
        found = run_threads(ranks, seen, spec, {"chunks": 4, "ways": ways})
        _, target = few_trained(1)[0].edge_index
        for layer, hop in enumerate((3, 2, 1, 0)):
            computed = torch.cat([ids[layer] for ids, *_ in found[:ways]])
            assert sorted(computed.tolist()) == np.flatnonzero(near(hop)).tolist()
            arcs = near(hop)[target].sum()
            assert sum(arcs[layer] for _, arcs, *_ in found[:ways]) == arcs
            assert sum(back[layer] for _, _, back, *_ in found[:ways]) == arcs
            assert sum(told[layer] for *_, told, _ in found) == near(hop).sum()


def test_borders_of_chunks_do_not_depend_on_what_is_live():
    spec = SPECS["gcn"]
    whole = run_threads(2, piped, few_trained, spec, {"chunks": 4}, 1)
    fewer = run_threads(2, piped, few_trained, spec, live(spec, chunks=4), 1)
    for (_, cut, orders), (_, other, others) in zip(whole, fewer, strict=True):
        assert orders == others
        assert [(i, sorted(ids.tolist())) for i, ids in cut] == [(i, sorted(ids.tolist())) for i, ids in other]


@pytest.mark.parametrize(("ranks", "cut"), [(2, (3,)), (3, (2, 4)), (5, (1, 2, 3, 4))])
def test_hops_carry_the_rows_that_are_read_behind_them(ranks, cut):
    spec = nn.GCN(layers=5, hidden=9)
    options = live(spec, cut=cut, chunks=6)
    counts = run_threads(ranks, sent, few_trained, spec, options, Wire())
    rows = sum(near(5 - first).sum() for first in cut)
    assert sum(count["hops"] for count in counts) == 2 * rows * 9 * 8


def test_ways_exchange_only_the_rows_that_are_read():
    spec = nn.GCN(layers=4, hidden=9)
    counts = run_threads(2, sent, few_trained, spec, live(spec, ways=2, chunks=3), Wire())
    graph, assignment = few_trained(2)
    source, target = graph.edge_index
    rows = 0
    for hop in (2, 1, 0):  # the first layer's aggregation is known
        crosses = (assignment.part[source] != assignment.part[target]) & near(hop)[target]
        rows += len(np.unique(np.stack([source, assignment.part[target]])[:, crosses], axis=1).T)
    assert sum(count["halo"] for count in counts) == 2 * rows * 9 * 8
