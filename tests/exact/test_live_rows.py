"""Layers that compute only live rows give the losses and gradients of layers that compute all rows."""

from functools import partial

import numpy as np
import pytest
import torch

from fullgraph import nn
from fullgraph.codec import Half, Subsample
from fullgraph.exchange import Bounded, Pipelined, Smooth, Wire
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import Mixture, Partitioned
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from tests.support import assert_same, train_trace, whole_logits
from tests.support.bodies import differing, resumed_epochs
from tests.support.cases import random_graph

SPECS = {
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "narrow": nn.GraphSAGE(layers=3, hidden=3, dropout=0.5, input_dropout=True, norm="layer"),
    "dense end": nn.GraphSAGE(layers=4, linear_layers=1, hidden=16, norm="layer", residual=True),
    "gcn": nn.GCN(layers=4, hidden=12, dropout=0.3, input_dropout=True, norm="layer", residual=True),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.2, input_dropout=True),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.2, input_dropout=True),
    "gcnii": nn.GCNII(layers=4, hidden=12, dropout=0.3),
    "resgcn": nn.ResGCN(layers=3, hidden=12, dropout=0.3),
    "batch": nn.GraphSAGE(layers=3, hidden=16, norm="batch"),
}
WIRES = {
    "exact": Wire(),
    "stale": Wire(schedule=Pipelined(), smooth=Smooth(gamma=0.8, features=True, gradients=True)),
    "bounded": Wire(schedule=Bounded(3)),
    "half": Wire(codec=Half()),
    "few columns": Wire(codec=Subsample(2)),
    "few nodes": Wire(share=0.5),
    "late turns": Wire(schedule=Pipelined(2), turns=2),
}
STEPS = 5


def few_trained(parts, *, trained=(3, 17, 41), **options):
    """A graph with few arcs and few training nodes, so that even four layers do not reach all of it."""
    train = np.isin(np.arange(90), trained)
    graph = random_graph(nodes=90, arcs=options.pop("arcs", 80), train=train, **options)
    part = np.random.default_rng(2).integers(0, parts, 90).astype(np.int32)
    return graph, Assignment(part=part, parts=parts, method="case", seed=0)


CASES = {
    "undirected": few_trained,
    "directed": partial(few_trained, directed=True),
    "weighted": partial(few_trained, directed=True, weighted=True),
    "sparse": partial(few_trained, sparse=True),
    "multilabel": partial(few_trained, multilabel=True),
    "one trained": partial(few_trained, trained=(5,)),  # most ranks have no training node
}


def live(spec, kind=Partitioned):
    return partial(kind, hops=spec.hops)


def compare(case, spec, ranks, *, run=run_threads, kind=Partitioned, **options):
    """Train with SGD: where gradients are only rounding errors, as attention's last ones, Adam still makes full
    steps.
    """
    options = {"steps": STEPS, "options": {"optimizer": "sgd"}, **options}
    whole = run(ranks, partial(train_trace, **options, placement=kind), case, spec)
    fewer = run(ranks, partial(train_trace, **options, placement=live(spec, kind)), case, spec)
    assert_same(fewer, whole[0]["losses"], whole[0]["grads"])
    torch.testing.assert_close(whole_logits(fewer, 90), whole_logits(whole, 90), rtol=1e-10, atol=1e-10)
    assert fewer[0]["scores"] == whole[0]["scores"]


def layers_of(case, spec, ranks):
    """By rank: rows that each layer of the training view computes, and rows that it reads from others."""

    def body(transport):
        part = cut_parts(*case(ranks), transport.rank)
        view = live(spec)(dtype=torch.float64).place(part, transport, Wire(), spec.aggregation).train.view
        rows = [view.rows(layer) for layer in range(spec.graph_layers)]
        return [(layer.targets, len(layer.halo_ids)) for layer in rows]

    return run_threads(ranks, body)


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_every_model_on_every_graph(model, case):
    for ranks in (1, 3):
        compare(CASES[case], SPECS[model], ranks)


@pytest.mark.sweep
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("narrow_first", [True, False])
@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "resgcn"])
def test_every_wire(model, wire, narrow_first):
    compare(few_trained, SPECS[model], 3, wire=WIRES[wire], narrow_first=narrow_first)


@pytest.mark.parametrize("options", [{"inductive": True}, {"isolated": True}, {"precompute": False}], ids=str)
@pytest.mark.parametrize("case", ["undirected", "sparse"])
def test_other_ways_to_train(case, options):
    compare(CASES[case], SPECS["sage"], 3, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_models_of_a_mixture(model, case):
    compare(CASES[case], SPECS[model], 3, kind=Mixture)


def test_a_mixture_of_one_rank():
    compare(few_trained, SPECS["gcn"], 1, kind=Mixture)


@pytest.mark.parametrize("wire", ["stale", "bounded", "half"])
def test_every_wire_of_a_mixture(wire):
    for model in ("sage", "gat"):
        compare(few_trained, SPECS[model], 3, kind=Mixture, wire=WIRES[wire])


@pytest.mark.parametrize(
    ("kind", "options"),
    [(Mixture, {"inductive": True}), (Mixture, {"precompute": False}), (partial(Mixture, blocks=2), {})],
    ids=["inductive", "nothing ahead", "blocks"],
)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_other_mixtures(kind, options, model):
    compare(few_trained, SPECS[model], 3, kind=kind, **options)


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_mixture_aggregates_and_sends_only_what_is_read(model):
    """Arcs into the rows of each layer; tiles of as many rows."""
    spec = SPECS[model]

    def body(transport):
        part = cut_parts(*few_trained(3), transport.rank)
        shard = live(spec, Mixture)(dtype=torch.float64).place(part, transport, Wire(), spec.aggregation)
        view = shard.train.view
        layers = [view.tiles(layer) for layer in range(spec.graph_layers)]
        grids = [(tiles.grid.patterns[0], tiles.grid.cells[0, 0].structure) for tiles in layers]
        arcs = [sum(part.num_arcs for part in parts) for parts in grids]  # one of the two is empty
        return [(sum(t.sources.sizes), sum(t.targets.sizes), n) for t, n in zip(layers, arcs, strict=True)]

    source, target = few_trained(3)[0].edge_index
    near = [np.isin(np.arange(90), (3, 17, 41))]
    for _ in range(3):
        near.append(near[-1].copy())
        near[-1][source[near[-2][target]]] = True
    loops = set(source[source == target].tolist())
    for found in run_threads(3, body):
        for hop, (sources, targets, arcs) in zip(spec.hops, found, strict=True):
            assert targets == near[hop].sum()
            assert sources == (90 if hop == spec.hops[0] else near[hop + 1].sum())
            new = sum(node not in loops for node in np.flatnonzero(near[hop]))
            assert arcs == near[hop][target].sum() + new


def test_real_processes_of_a_mixture():
    compare(few_trained, SPECS["sage"], 2, run=run_processes, kind=Mixture)


def test_real_processes():
    compare(few_trained, SPECS["gcn"], 2, run=run_processes, wire=WIRES["stale"])


def test_a_layer_computes_and_fetches_only_what_is_read():
    """Counted independently: by following arcs backwards from the training nodes, on the whole graph."""
    for ranks in (1, 3):
        graph, assignment = few_trained(ranks)
        source, target = graph.edge_index
        near = [np.asarray(graph.train_mask[:, 0])]
        for _ in range(2):
            near.append(near[-1].copy())
            near[-1][source[near[-2][target]]] = True
        layers = layers_of(few_trained, SPECS["sage"], ranks)
        for rank, found in enumerate(layers):
            owned = assignment.part == rank
            for hop, (rows, halo) in zip((2, 1, 0), found, strict=True):
                read = np.zeros(90, bool)
                read[source[(near[hop] & owned)[target]]] = True
                assert rows == (near[hop] & owned).sum()
                assert halo == (read & ~owned).sum()
        assert sum(rows for found in layers for rows, _ in found) < 0.7 * 3 * 90


def test_batch_norm_sees_all_rows_of_the_layers_before_it():
    assert SPECS["batch"].hops == (None, None, 0)
    assert nn.GraphSAGE(layers=3, linear_layers=1, norm="batch").hops == (None, None)
    assert [rows for rows, _ in layers_of(few_trained, SPECS["batch"], 1)[0]] == [90, 90, 3]


def test_rows_stay_as_they_are_where_next_to_nothing_is_left_out():
    everything = partial(few_trained, trained=np.arange(88))
    assert [rows for rows, _ in layers_of(everything, SPECS["sage"], 1)[0]] == [90, 90, 90]


def test_a_run_resumed_is_the_same_run():
    config = TrainConfig(epochs=4, checkpoint_every=1, lr=0.05, seed=3, dtype="float64")
    run = (few_trained, SPECS["sage"], config, WIRES["stale"], True, False, live(SPECS["sage"]))
    for (losses, saved), *others in run_threads(2, resumed_epochs, *run):
        for start, (again, kept) in enumerate(others):
            assert again == losses[start:]
            assert differing(kept[-1], saved[-1]) == []


def test_models_deeper_than_a_byte_counts():
    found = layers_of(few_trained, nn.GraphSAGE(layers=130, hidden=4), 2)
    assert all(rows[0] >= rows[-1] for rows in found)
    assert all(rows[-1][0] < rows[0][0] for rows in found)
