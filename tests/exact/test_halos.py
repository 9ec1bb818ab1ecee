"""Sampled halos, halos in turns, skipped messages and bits by variance equal their equations, alone and combined."""

import re
from random import Random

import pytest
import torch

from fullgraph import nn, recipes
from fullgraph.codec import Full, LowBit, MinVariance
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Drift, Pipelined, Skip, Smooth, Sync, Wire
from fullgraph.exchange.rows import SALT, Picks
from fullgraph.ops.hashing import draws, dropout_key, row_keys
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting
from tests.support import CASES, HaloRules, assert_same, halo_trace, train_trace, trainer_of

STEPS = 7
SPECS = {
    "sage": nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True),
    "gcn": nn.GCN(layers=4, hidden=12, dropout=0.3, input_dropout=True, norm="layer"),
    "gin": nn.GIN(layers=3, hidden=16, dropout=0.0),
    "gat": nn.GAT(layers=3, hidden=16, heads=2, dropout=0.2, input_dropout=True),
}
LATE = {"read": lambda step: step - 3 if step >= 3 else None}

# recipe, its options as typed, and their meaning
EQUATIONS = {
    "bns": ("bns", {"p": "0.4"}, HaloRules(share=0.4)),
    "bns, nothing": ("bns", {"p": "0"}, HaloRules(share=0.0)),
    "bns, all": ("bns", {"p": "1"}, HaloRules()),
    "adaqp": ("adaqp", {"period": "2"}, HaloRules(period=2)),
    "adaqp, budget": ("adaqp", {"period": "3", "budget": "3.5"}, HaloRules(period=3, budget=3.5)),
    "sancus": ("sancus", {"bound": "1", "longest": "0"}, HaloRules(bound=1.0)),
    "sancus, longest": ("sancus", {"bound": "9", "longest": "2"}, HaloRules(bound=9.0, longest=2)),
    "sancus, gradients": (
        "sancus",
        {"bound": "1", "gradients": "true"},
        HaloRules(bound=1.0, longest=10, bound_gradients=True),
    ),
    "cd-r": ("cd-r", {"r": "3"}, HaloRules(turns=3, **LATE)),
}


def oracle(case, ranks, spec, rules, **options):
    graph, assignment = CASES[case](ranks)
    return halo_trace(graph, torch.from_numpy(assignment.part.copy()), spec, rules, STEPS, **options)


def trace(transport, case, spec, strategy):
    return train_trace(transport, CASES[case], spec, STEPS, strategy=strategy)


@pytest.mark.sweep
@pytest.mark.parametrize("model", SPECS)
@pytest.mark.parametrize("name", EQUATIONS)
def test_recipes_equal_their_equations(name, model):
    recipe, options, rules = EQUATIONS[name]
    traces = run_threads(3, trace, "directed", SPECS[model], STRATEGIES.make(recipe, **options))
    assert_same(traces, *oracle("directed", 3, SPECS[model], rules))


@pytest.mark.parametrize("name", ["bns", "adaqp", "sancus", "cd-r"])
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_narrow_rows_equal_their_equations(name, model):
    """Mapped first if that is narrower: here the last layer, from 16 columns to 4 (attention: to 2 x 4)."""
    recipe, options, rules = EQUATIONS[name]
    strategy = STRATEGIES.make(recipe, **options, narrow="true")
    assert_same(run_threads(3, trace, "wide", SPECS[model], strategy), *narrow_oracle("wide", model, rules))


def narrow_oracle(case, model, rules):
    return oracle(case, 3, SPECS[model], rules, narrow_first=True)


@pytest.mark.sweep
@pytest.mark.parametrize("case", ["sparse", "weighted", "no training nodes", "no halo", "empty parts"])
@pytest.mark.parametrize("name", ["bns", "adaqp", "sancus", "cd-r"])
def test_awkward_parts(name, case):
    recipe, options, rules = EQUATIONS[name]
    traces = run_threads(3, trace, case, SPECS["sage"], STRATEGIES.make(recipe, **options))
    assert_same(traces, *oracle(case, 3, SPECS["sage"], rules))


SCHEDULES = {Sync(): 0, Pipelined(): 1, Pipelined(2): 2, Bounded(3): 1, Skip(2): 1}


def drawn(seed):
    """A wire with any choice on every axis, and the same choice as rules."""
    pick = Random(seed).choice
    schedule = pick(list(SCHEDULES))
    share, turns, bound = pick([1.0, 0.6]), pick([1, 2, 3]), pick([None, 1.0])
    gradients, longest, feedback = pick([False, True]), pick([0, 2]), pick([False, True])
    codec, coded = pick([(Full(), {}), (LowBit(2), {"bits": 2}), (MinVariance(period=2), {"period": 2})])
    late = not any(schedule.turn(step).read == step for step in range(STEPS))
    gamma = pick([0.0, 0.7]) if late else 0.0
    drift = None if bound is None else Drift(bound=bound, longest=longest, gradients=gradients)
    wire = Wire(
        schedule=schedule, codec=codec, smooth=Smooth(gamma=gamma) if gamma else None, feedback=feedback, share=share,
        turns=turns, drift=drift,
    )  # fmt: skip
    rules = HaloRules(
        read=lambda step: schedule.turn(step).read, sends=lambda step: schedule.turn(step).send, share=share,
        turns=turns, bound=bound, longest=longest, bound_gradients=gradients, gamma=gamma, feedback=feedback, **coded,
    )  # fmt: skip
    return wire, rules, pick(["sage", "gcn", "gat"])


@pytest.mark.parametrize("seed", range(12))
def test_any_combination_equals_its_equations(seed):
    wire, rules, model = drawn(seed)
    options = (STEPS, wire, False, True, "cpu", 0.05, False)
    traces = run_threads(3, train_trace, CASES["directed"], SPECS[model], *options)
    assert_same(traces, *oracle("directed", 3, SPECS[model], rules), tolerance=1e-9)


def test_recipes_equal_their_equations_in_processes():
    recipe = STRATEGIES.make("free", schedule="pipelined", codec="adaqp", period="2", share="0.6", turns="2", bound="1")
    rules = HaloRules(read=lambda t: t - 1 if t else None, share=0.6, turns=2, bound=1.0, period=2)
    traces = run_processes(2, trace, "directed", SPECS["sage"], recipe)
    assert_same(traces, *oracle("directed", 2, SPECS["sage"], rules))


VANILLA = {
    "a share of all": Wire(share=1.0),
    "one turn": Wire(turns=1),
    "no change is too small": Wire(drift=Drift(bound=0.0, gradients=True)),
}


def test_settings_that_are_vanilla_to_the_bit():
    traces = {
        name: run_threads(3, train_trace, CASES["directed"], SPECS["sage"], STEPS, wire)[0]
        for name, wire in {"vanilla": Wire(), **VANILLA}.items()
    }
    want = traces.pop("vanilla")
    for name, got in traces.items():
        assert torch.equal(got["losses"], want["losses"]), name
        for one, other in zip(got["grads"], want["grads"], strict=True):
            assert all(torch.equal(one[weight], other[weight]) for weight in one), name


@pytest.mark.parametrize(
    "wire",
    [Wire(turns=2), Wire(turns=3, schedule=Pipelined(3)), Wire(drift=Drift(bound=1e-12, gradients=True))],
    ids=["turns", "late turns", "drift"],
)
def test_frozen_weights_reach_the_exact_gradients(wire):
    """When weights no longer change, rows that were not sent are correct."""
    spec, steps = nn.GraphSAGE(layers=3, hidden=16, dropout=0.0), 30
    exact, held = (
        run_threads(3, train_trace, CASES["directed"], spec, steps, each, False, True, "cpu", 1e-300)
        for each in (Wire(), wire)
    )
    for name, want in exact[0]["grads"][-1].items():
        torch.testing.assert_close(held[0]["grads"][-1][name], want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", SPECS)
def test_the_bound_of_these_tests_skips_some_messages_and_not_others(model):
    some, none, all_ = (oracle("directed", 3, SPECS[model], HaloRules(bound=b))[0] for b in (1.0, 0.0, 1e9))
    assert not torch.allclose(some, none, atol=1e-6)
    assert not torch.allclose(some, all_, atol=1e-6)


def test_a_sampled_row_counts_once_on_average():
    ids, counted = torch.arange(60), torch.zeros(60)
    for seed in range(2000):
        picks = Picks(share=0.3, turns=1, seed=seed, sent={0: ids}, come={0: ids})
        counted[picks.at(5).sent[0]] += picks.scale / 2000
    torch.testing.assert_close(counted, torch.ones(60), rtol=0.0, atol=0.2)
    torch.testing.assert_close(counted.mean(), torch.tensor(1.0), rtol=0.0, atol=0.02)


def test_a_draw_is_the_same_on_both_ends_and_for_all_readers():
    some, others = torch.tensor([5, 9, 200, 7]), torch.tensor([7, 200, 11])
    here = Picks(share=0.5, turns=1, seed=1, sent={1: some}, come={1: others})
    there = Picks(share=0.5, turns=1, seed=1, sent={0: others}, come={0: some})
    for step in range(20):
        assert torch.equal(here.at(step).sent[1], there.at(step).come[0])
        assert torch.equal(here.T.at(step).sent[1], there.at(step).sent[0])
        kept = [
            set(ids[rows].tolist()) & {7, 200}
            for ids, rows in ((some, here.at(step).sent[1]), (others, there.at(step).sent[0]))
        ]
        assert kept[0] == kept[1]


def test_the_recipes_wires():
    assert recipes.bns(p=0.2).wires(epochs=9, layers=3) == Wire(share=0.2)
    assert recipes.cd_r(r=4).wires(epochs=9, layers=3) == Wire(schedule=Pipelined(4), turns=4)
    assert recipes.adaqp(budget=4).wires(epochs=9, layers=3) == Wire(codec=MinVariance(budget=4))
    assert recipes.sancus(bound=0.2).wires(epochs=9, layers=3) == Wire(drift=Drift(bound=0.2, longest=10))


# What crosses.


def rows_sent(transport, strategy, spec, steps):
    """Bytes of rows that this rank gives to the transport, by step."""
    config = TrainConfig(epochs=steps, seed=3)
    sent = []
    counting = Counting(transport, lambda key, nbytes: sent.append((key, nbytes)))
    trainer = trainer_of(counting, CASES["undirected"], spec, config, strategy=strategy)
    for _ in range(steps):
        trainer.train_step()
    return [sum(n for key, n in sent if key.use == "rows" and key.step == step) for step in range(steps)]


def halo_nodes(ranks):
    """The nodes of every pair of an owner and a reader."""
    graph, assignment = CASES["undirected"](ranks)
    source, target = graph.edge_index
    part = assignment.part
    pairs = {}
    for s, r in {(int(a), int(b)) for a, b in zip(part[source], part[target], strict=True) if a != b}:
        crossing = source[(part[source] == s) & (part[target] == r)]
        pairs[s, r] = torch.from_numpy(crossing).unique().long()
    return pairs


WIDTH, CROSSING = 16, 2  # of three layers the first is precomputed


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("turns", [1, 3])
def test_bytes_of_sampled_turns_equal_the_formula(share, turns):
    """2 directions x 2 layers x 4 d bytes for every due and drawn node, once for each part that reads it."""
    strategy = STRATEGIES.make("free", schedule="sync", codec="full", share=str(share), turns=str(turns))
    spec, steps = nn.GraphSAGE(layers=3, hidden=WIDTH), 4
    got = torch.tensor(run_threads(3, rows_sent, strategy, spec, steps)).sum(0).tolist()
    for step, nbytes in enumerate(got):
        nodes = torch.cat([ids[ids % turns == step % turns] for ids in halo_nodes(3).values()])
        a, b = row_keys(dropout_key(3, step, SALT), nodes)
        drawn = int((draws(a, b, torch.zeros_like(nodes)).double() / 2**32 < share).sum())
        assert nbytes == 2 * CROSSING * 4 * WIDTH * drawn


def test_bytes_of_skipped_messages_equal_the_formula():
    """One byte per message always; rows in the first step and then in every third, gradients always."""
    strategy = recipes.sancus(bound=1e6, longest=2)
    spec, pairs = nn.GraphSAGE(layers=3, hidden=WIDTH), halo_nodes(3)
    rows = CROSSING * 4 * WIDTH * sum(map(len, pairs.values()))
    got = torch.tensor(run_threads(3, rows_sent, strategy, spec, 7)).sum(0).tolist()
    assert got == [rows + CROSSING * len(pairs) + (rows if step % 3 == 0 else 0) for step in range(7)]


@pytest.mark.parametrize("budget", [2.0, 3.0, 5.0, 8.0])
def test_bytes_of_chosen_bits_keep_the_budget(budget):
    strategy = recipes.adaqp(budget=budget, period=2)
    spec, pairs = nn.GraphSAGE(layers=3, hidden=WIDTH), halo_nodes(3)
    number = sum(map(len, pairs.values()))
    got = torch.tensor(run_threads(3, rows_sent, strategy, spec, 5)).sum(0).tolist()
    start = max(bits for bits in (2, 4, 8) if bits <= budget)
    assert got[:2] == [2 * CROSSING * number * (start * WIDTH // 8 + 4)] * 2
    limit = 2 * CROSSING * number * (budget * WIDTH / 8 + 4)
    assert all(limit - 2 * CROSSING * len(pairs) * WIDTH / 2 <= nbytes <= limit for nbytes in got[2:])


def test_the_narrow_order_sends_fewer_bytes():
    """The last layer's 16 columns become 4; the first layer is precomputed in either order, with sparse features
    too.
    """
    spec = nn.GraphSAGE(layers=3, hidden=WIDTH)
    for name in ("pipegcn", "fixed", "varco", "bns"):
        both = [
            sum(map(sum, run_threads(3, rows_sent, STRATEGIES.make(name, narrow=narrow), spec, 3)))
            for narrow in ("false", "true")
        ]
        assert both[1] < both[0], name
    wide, narrow = (recipes.pipegcn(narrow=narrow) for narrow in (False, True))
    (full, less) = (torch.tensor(run_threads(3, rows_sent, each, spec, 3)).sum(0) for each in (wide, narrow))
    assert torch.equal(full * 20, less * 32)  # 16 + 16 columns, and 16 + 4


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("bns", {"p": "1.5"}, "p=1.5: at least 0 and at most 1"),
        ("cd-r", {"r": "0"}, "r=0: at least 1"),
        ("sancus", {"bound": "-1"}, "bound=-1: at least 0"),
        ("adaqp", {"budget": "1"}, "budget=1.0: a row takes 2, 4 or 8 bits; give 2 to 8, or 0 to let lam decide"),
        ("adaqp", {"lam": "2"}, "lam=2: at least 0 and at most 1"),
        ("free", {"placement": "mixture", "share": "0.5"}, "share, turns, bound and most are for halo rows"),
    ],
)
def test_bad_options_name_the_fix(name, options, text):
    with pytest.raises(InputError, match=re.escape(text)):
        STRATEGIES.make(name, **options)
