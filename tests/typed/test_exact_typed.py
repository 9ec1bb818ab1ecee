"""Typed models on any number of ranks equal dense equations: losses, logits, all gradients, learned rows included."""

from functools import partial

import pytest
import torch

from fullgraph import nn
from fullgraph.codec import LowBit
from fullgraph.exchange import Bounded, Pipelined, Sync, Wire
from fullgraph.graph_types import GraphTypes, RelationFact, TypeFact
from fullgraph.placement import Partitioned
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.sync import _groups
from tests.support import differing, resumed_epochs, train_trace, trainer_of, whole_logits
from tests.typed.oracle import CASES, SIZES, assert_typed, stale_typed_trace, typed_trace

NODES = sum(SIZES.values())
SPECS = {
    "rgcn": nn.RGCN(layers=2, hidden=12, dropout=0.4),
    "rgcn, bases": nn.RGCN(layers=3, hidden=8, dropout=0.0, bases=3),
    "hetero-sage": nn.HeteroSAGE(layers=3, hidden=8, dropout=0.3),
    "hetero-sage, batch norm": nn.HeteroSAGE(layers=2, hidden=8, dropout=0.2, norm="batch"),
    "rgcn, one layer": nn.RGCN(layers=1, hidden=8, dropout=0.5, norm="none"),
}


@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_dense_equations(case, model):
    spec = SPECS[model]
    found, logits = typed_trace(case, spec)
    for ranks in (1, 2, 3, 4):
        traces = run_threads(ranks, train_trace, CASES[case], spec)
        assert_typed(traces, found)
        if len(logits):
            torch.testing.assert_close(whole_logits(traces, NODES), logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", ["rgcn", "rgcn, bases", "hetero-sage"])
@pytest.mark.parametrize("case", ["scattered", "weighted", "a type on one rank"])
def test_live_rows_change_nothing(case, model, monkeypatch):
    """Layers that compute only the rows that the loss reads, in another order, give the same numbers to 1e-10."""
    monkeypatch.setattr("fullgraph.placement.holding.live.WORTH", 1.0)
    spec = SPECS[model]
    found, logits = typed_trace(case, spec)
    for ranks in (1, 3):
        live = partial(Partitioned, hops=spec.hops)
        traces = run_threads(ranks, partial(train_trace, placement=live), CASES[case], spec)
        assert_typed(traces, found, tolerance=1e-10)
        torch.testing.assert_close(whole_logits(traces, NODES), logits, rtol=1e-10, atol=1e-10)


def test_checkpointed_layers_change_nothing():
    spec = SPECS["hetero-sage"]
    found, _ = typed_trace("scattered", spec)
    body = partial(train_trace, options={"checkpoint_layers": True})
    assert_typed(run_threads(3, body, CASES["scattered"], spec), found)


@pytest.mark.parametrize("schedule", [Pipelined(), Bounded(3)], ids=str)
@pytest.mark.parametrize("case", ["scattered", "types apart"])
@pytest.mark.parametrize("model", ["rgcn", "hetero-sage"])
def test_late_rows_equal_their_equations(model, case, schedule):
    spec = SPECS[model]
    wanted = stale_typed_trace(case, 3, spec, lambda step: schedule.turn(step).read, 6)
    assert_typed(run_threads(3, train_trace, CASES[case], spec, 6, Wire(schedule=schedule)), wanted)


@pytest.mark.parametrize("bits", [1, 4])
@pytest.mark.parametrize("schedule", [Sync(), Pipelined()], ids=str)
@pytest.mark.parametrize("case", ["scattered", "types apart"])
@pytest.mark.parametrize("model", ["rgcn", "hetero-sage"])
def test_rows_in_few_bits_equal_their_equations(model, case, schedule, bits):
    """Rows are quantised once per receiving part, whatever relations read them, and so are their gradients."""
    spec, wire = SPECS[model], Wire(schedule=schedule, codec=LowBit(bits))
    wanted = stale_typed_trace(case, 3, spec, lambda step: schedule.turn(step).read, 5, bits)
    assert_typed(run_threads(3, train_trace, CASES[case], spec, 5, wire), wanted)


def in_turn(transport, runs):
    return [anew(transport, train_trace, *run) for run in runs]


def test_processes_equal_dense_equations():
    runs = [(CASES[case], SPECS[model]) for case in ("scattered", "types apart") for model in ("rgcn", "hetero-sage")]
    names = [(case, model) for case in ("scattered", "types apart") for model in ("rgcn", "hetero-sage")]
    for (case, model), *traces in zip(names, *run_processes(3, in_turn, runs), strict=True):
        assert_typed(traces, typed_trace(case, SPECS[model])[0])


@pytest.mark.parametrize("schedule", [None, Wire(schedule=Pipelined())], ids=["fresh", "late"])
@pytest.mark.parametrize("case", ["scattered", "a type on one rank"])
def test_resuming_anywhere_is_bit_identical(case, schedule):
    config = TrainConfig(epochs=4, eval_every=2, checkpoint_every=1)
    for (losses, saved), *again in run_threads(3, resumed_epochs, CASES[case], SPECS["rgcn"], config, schedule):
        assert any("embedding" in name for name in saved[-1][0])
        for epoch, (late_losses, late_saved) in enumerate(again):
            assert late_losses == losses[epoch:], f"resumed after {epoch} epochs"
            for want, got in zip(saved[epoch:], late_saved, strict=True):
                assert differing(want, got) == []


def test_learned_rows_are_held_by_their_owners_alone():
    def rows(transport):
        trainer = trainer_of(transport, CASES["scattered"], SPECS["rgcn"], TrainConfig(epochs=1))
        embedding = trainer.model.input.embedding
        trainer.train_step()
        kept = trainer.optimizer.state[embedding.weight]["exp_avg"]
        return len(trainer.shard.full.ids), len(embedding.weight), len(kept), embedding.nodes.tolist()

    found = run_threads(3, rows)
    bare = SIZES["venue"] + SIZES["topic"]
    assert sorted(node for *_, nodes in found for node in nodes) == list(range(bare))
    assert all(held == kept < bare for _, held, kept, _ in found)


def test_messages_of_gradients_do_not_depend_on_the_rows_that_a_rank_holds():
    """Ranks sum gradients in the same groups, however many learned rows each of them has."""
    types = GraphTypes((TypeFact("a", 5, 8), TypeFact("b", 1000, 0)), (RelationFact("a", "r", "b", 1),), "a")
    models = [nn.RGCN(hidden=60).build(8, 4, types=types, ids=torch.arange(5, 5 + rows)) for rows in (0, 1000)]
    names = [{parameter: name for name, parameter in model.named_parameters()} for model in models]
    groups = [[[own[p] for p in group] for group in _groups(model)] for own, model in zip(names, models, strict=True)]
    assert len(groups[0]) > 1
    assert groups[0] == groups[1]
