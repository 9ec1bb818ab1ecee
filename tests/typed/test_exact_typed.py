"""Typed models on any number of ranks equal dense equations: losses, logits, all gradients, learned rows included."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fullgraph import nn
from fullgraph.axes import OPTIMIZERS
from fullgraph.codec import LowBit
from fullgraph.exchange import Bounded, Pipelined, Sync, Wire
from fullgraph.graph_types import GraphTypes, RelationFact, TypeFact
from fullgraph.placement import Partitioned
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.sync import _groups
from tests.support import differing, resumed_epochs, train_trace, trainer_of, whole_logits
from tests.support.oracles import trained
from tests.typed.oracle import CASES, SIZES, DenseTyped, assert_typed, stale_typed_trace, typed_graph, typed_trace

NODES = sum(SIZES.values())
SPECS = {
    "rgcn": nn.RGCN(layers=2, hidden=12, dropout=0.4),
    "rgcn, bases": nn.RGCN(layers=3, hidden=8, dropout=0.0, bases=3),
    "rgcn, blocks": nn.RGCN(layers=2, hidden=8, dropout=0.3, blocks=4),
    "hetero-sage": nn.HeteroSAGE(layers=3, hidden=8, dropout=0.3, embedding_dropout=0.4),
    "hetero-sage, batch norm": nn.HeteroSAGE(layers=2, hidden=8, dropout=0.2, norm="batch"),
    "rgat": nn.RGAT(layers=2, hidden=8, heads=2, dropout=0.3),
    "hgt": nn.HGT(layers=2, hidden=8, heads=2, dropout=0.3, scale_types=False),
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


@pytest.mark.parametrize("model", ["rgcn", "rgcn, bases", "hetero-sage", "rgat", "hgt"])
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


@pytest.mark.parametrize("model", ["rgcn", "rgcn, bases", "rgcn, blocks", "hetero-sage"])
@pytest.mark.parametrize("case", ["scattered", "weighted", "types apart"])
def test_sums_of_rows_equal_dense_equations(case, model):
    """`vanilla` sends rows, or sums of rows by target and relation."""
    found, logits = typed_trace(case, SPECS[model])
    body = partial(train_trace, strategy=STRATEGIES.make("vanilla"))
    traces = run_threads(3, body, CASES[case], SPECS[model])
    assert_typed(traces, found)
    torch.testing.assert_close(whole_logits(traces, NODES), logits, rtol=1e-9, atol=1e-9)


def test_checkpointed_layers_change_nothing():
    spec = SPECS["hetero-sage"]
    found, _ = typed_trace("scattered", spec)
    body = partial(train_trace, options={"checkpoint_layers": True})
    assert_typed(run_threads(3, body, CASES["scattered"], spec), found)


@pytest.mark.parametrize("schedule", [Pipelined(), Bounded(3)], ids=str)
@pytest.mark.parametrize("case", ["scattered", "types apart"])
@pytest.mark.parametrize("model", ["rgcn", "hetero-sage", "rgat", "hgt"])
def test_late_rows_equal_their_equations(model, case, schedule):
    spec = SPECS[model]
    wanted = stale_typed_trace(case, 3, spec, lambda step: schedule.turn(step).read, 6)
    assert_typed(run_threads(3, train_trace, CASES[case], spec, 6, Wire(schedule=schedule)), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_gpu_equals_dense_equations(ranks, model):
    """The same body with the rows of all simulated ranks on one CUDA device."""
    traces = run_threads(ranks, partial(train_trace, device="cuda"), CASES["scattered"], SPECS[model])
    assert_typed(traces, typed_trace("scattered", SPECS[model])[0])


def losses(transport, spec, precision):
    config = TrainConfig(epochs=5, lr=0.05, seed=3, precision=precision)
    trainer = trainer_of(transport, CASES["scattered"], spec, config)
    return [float(trainer.train_step()[0]) for _ in range(5)]


@pytest.mark.parametrize("model", ["rgcn", "hetero-sage", "rgat", "hgt"])
def test_rows_of_16_bits_give_nearly_the_same_losses(model):
    full, half = (run_threads(2, losses, replace(SPECS[model], dropout=0.0), kind) for kind in ("fp32", "bf16"))
    assert full != half
    torch.testing.assert_close(torch.tensor(half).sum(0), torch.tensor(full).sum(0), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("bits", [1, 4])
@pytest.mark.parametrize("schedule", [Sync(), Pipelined()], ids=str)
@pytest.mark.parametrize("case", ["scattered", "types apart"])
@pytest.mark.parametrize("model", ["rgcn", "hetero-sage", "rgat", "hgt"])
def test_rows_in_few_bits_equal_their_equations(model, case, schedule, bits):
    """Rows are quantised once per receiving part, whatever relations read them, and so are their gradients."""
    spec, wire = SPECS[model], Wire(schedule=schedule, codec=LowBit(bits))
    wanted = stale_typed_trace(case, 3, spec, lambda step: schedule.turn(step).read, 5, bits)
    assert_typed(run_threads(3, train_trace, CASES[case], spec, 5, wire), wanted)


def in_turn(transport, runs):
    return [anew(transport, train_trace, *run) for run in runs]


def test_processes_equal_dense_equations():
    runs = [
        (CASES[case], SPECS[model]) for case in ("scattered", "types apart") for model in ("rgcn", "hetero-sage", "hgt")
    ]
    names = [(case, model) for case in ("scattered", "types apart") for model in ("rgcn", "hetero-sage", "hgt")]
    for (case, model), *traces in zip(names, *run_processes(3, in_turn, runs), strict=True):
        assert_typed(traces, typed_trace(case, SPECS[model])[0])


HALOS = [name for name in STRATEGIES if name != "auto" and STRATEGIES.make(name).layout().by_relation]


@pytest.mark.parametrize(
    ("model", "strategy"),
    [(model, name) for model in ("rgcn", "hgt") for name in HALOS if (model, name) != ("hgt", "bns")],
)
def test_resuming_anywhere_is_bit_identical(model, strategy):
    config, strategy = TrainConfig(epochs=4, eval_every=2, checkpoint_every=1), STRATEGIES.make(strategy)
    run = (CASES["a type on one rank"], SPECS[model], config, None, True, False, None, strategy)
    for (losses, saved), *again in run_threads(3, resumed_epochs, *run):
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


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_learned_rows_may_have_their_own_weight_decay(optimizer):
    """The same weights as with torch's optimizer on one process, whatever the number of ranks; and after a resume."""
    spec, steps = replace(SPECS["rgcn"], dropout=0.0), 4
    options = {"optimizer": OPTIMIZERS.make(optimizer), "weight_decay": 0.05, "embedding_weight_decay": 2.0}
    dense = DenseTyped(typed_graph(), spec)
    rows = dense.model.input.embedding.weight
    others = [weight for weight in dense.model.parameters() if weight is not rows]
    groups = [{"params": [rows], "weight_decay": 2.0}, {"params": others}]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    wanted = trained(dense.graph.union, dense, steps, optimizer=kind(groups, lr=0.05, weight_decay=0.05))
    plain = trained(dense.graph.union, DenseTyped(typed_graph(), spec), steps)
    assert not torch.allclose(wanted[0], plain[0], rtol=1e-3)
    for ranks in (1, 3):
        assert_typed(run_threads(ranks, partial(train_trace, options=options), CASES["scattered"], spec, steps), wanted)
    config = TrainConfig(epochs=4, eval_every=2, checkpoint_every=1, **options)
    for (losses, saved), *again in run_threads(3, resumed_epochs, CASES["types apart"], spec, config):
        for epoch, (late_losses, late_saved) in enumerate(again):
            assert late_losses == losses[epoch:]
            assert differing(saved[-1], late_saved[-1]) == []
