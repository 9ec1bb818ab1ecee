"""Rows in the order of their clusters give the losses, gradients and predictions of rows in the given order."""

from functools import partial

import pytest
import torch

from fullgraph.partition import cut_parts
from fullgraph.placement import Partitioned
from fullgraph.placement.holding import locality
from fullgraph.placement.rank_graph import RankGraph
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.exact.test_live_rows import CASES, SPECS, WIRES, few_trained
from tests.support import assert_same, train_trace, whole_logits
from tests.support.bodies import differing, resumed_epochs
from tests.support.cases import CASES as AWKWARD


@pytest.fixture(autouse=True)
def any_order_is_taken(monkeypatch):
    """Accept any new order: on a CPU, with few rows, better or not."""
    for name, value in {"MIN_ROWS": 0, "NEAR": 8, "LOCAL": 2.0, "GAIN": -1.0}.items():
        monkeypatch.setattr(locality, name, value)


def compare(case, spec, ranks, nodes=90, hops=None, **options):
    options = {"steps": 3, **options}
    hops = spec.hops if hops is None else hops
    given, ordered = (
        run_threads(ranks, partial(train_trace, **options, placement=placement), case, spec)
        for placement in (partial(Partitioned, order="given"), partial(Partitioned, hops=hops))
    )
    assert_same(ordered, given[0]["losses"], given[0]["grads"])
    torch.testing.assert_close(whole_logits(ordered, nodes), whole_logits(given, nodes), rtol=1e-6, atol=1e-8)
    assert ordered[0]["scores"] == given[0]["scores"]
    return given, ordered


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("live", [True, False])
def test_every_model(model, live):
    given, ordered = compare(few_trained, SPECS[model], 3 if live else 2, hops=None if live else ())
    assert not any(torch.equal(a["ids"], b["ids"]) for a, b in zip(given, ordered, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_every_graph(case):
    compare(CASES[case], SPECS["gcn"], 1)


@pytest.mark.parametrize("case", ["isolated", "no halo", "empty parts", "overfull"])
def test_awkward_parts(case):
    compare(AWKWARD[case], SPECS["sage"], 3, nodes=6 if case == "overfull" else 60)


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire(wire):
    given, ordered = compare(few_trained, SPECS["sage"], 3, wire=WIRES[wire], hops=())
    for one, other in zip(given, ordered, strict=True):  # so that a run may go on in another order
        torch.testing.assert_close(other["state"], one["state"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{"inductive": True}, {"isolated": True}, {"precompute": False}], ids=str)
@pytest.mark.parametrize("case", ["undirected", "sparse"])
def test_other_ways_to_train(case, options):
    compare(CASES[case], SPECS["sage"], 3, **options)


def test_rows_come_by_level_then_by_cluster_then_as_given():
    spec = SPECS["sage"]

    def body(transport):
        given = RankGraph.of_part(cut_parts(*few_trained(2), transport.rank), torch.float64)
        return given, *Partitioned(hops=spec.hops).arranged(given, transport)

    for given, local, live in run_threads(2, body):
        row_n = torch.searchsorted(given.rows.ids, local.rows.ids)
        level_n = live.level_n[row_n]
        place_n = locality.places(locality.clustered(given.arcs))[row_n]
        assert (level_n.diff() >= 0).all()
        assert all((place_n[level_n == level].diff() > 0).all() for level in level_n.unique())


def test_a_run_resumed_is_the_same_run():
    spec = SPECS["sage"]
    config = TrainConfig(epochs=4, checkpoint_every=1, lr=0.05, seed=3, dtype="float64")
    run = (few_trained, spec, config, WIRES["stale"], True, False, partial(Partitioned, hops=spec.hops))
    for (losses, saved), *others in run_threads(2, resumed_epochs, *run):
        for start, (again, kept) in enumerate(others):
            assert again == losses[start:]
            assert differing(kept[-1], saved[-1]) == []
