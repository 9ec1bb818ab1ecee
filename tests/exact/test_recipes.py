"""Every recipe, as a run uses it, equals its equations: in threads and in real processes."""

import re

import pytest
import torch

from fullgraph import nn, recipes
from fullgraph.codec import Full, Half, LowBit, Subsample
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Pipelined, Skip, Smooth, Wire
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.transport import Key
from tests.support import CASES, assert_same, coded, stale_trace, train_trace

STEPS = 7
CASE = CASES["directed"]
SAGE = nn.GraphSAGE(layers=3, hidden=16, dropout=0.5, input_dropout=True)
GCN = nn.GCN(layers=4, hidden=12, dropout=0.3, input_dropout=True, norm="layer", linear_layers=1)
GAT = nn.GAT(layers=3, hidden=16, heads=2, dropout=0.2, input_dropout=True)


def today(step):
    return step


def yesterday(step):
    return step - 1 if step else None


def yesterday_but_every_third(step):
    return [None, 0, 2, 2, 3, 5, 5][step]


def bits(number, back=None):
    return lambda graph, part: coded(graph, part, LowBit(number), back or LowBit(number))


def falling(step):
    return max(9 - 2 * 8 * step / (STEPS - 1), 1)


def columns(rate, *, every_layer=False):
    """1/rate(t) of the columns cross in both directions; by default all of them in the last graph layer, layer 2."""

    def seen(step, layer, rows):
        if layer == 2 and not every_layer:
            return rows
        width = rows.shape[1]
        chosen = Subsample(rate(step)).columns(width, Key(f"halo/layer{layer}", step, run=3))
        assert len(chosen) == max(1, int(width / rate(step)))
        return rows * torch.zeros(width, dtype=rows.dtype).index_fill(0, chosen, 1.0)

    return lambda graph, part: seen


FREE = {"codec": "lowbit", "bits": "2", "backward": "half", "smooth": "gf", "gamma": "0.8"}

# recipe, its options as typed, the version that a step reads, the codec, smoothing
EQUATIONS = {
    "vanilla": ({}, today, None, {}),
    "mixgcn": ({}, today, None, {}),
    "pipegcn": ({}, yesterday, None, {}),
    "pipegcn-f": ({}, yesterday, None, {"gamma_features": 0.95}),
    "pipegcn-g": ({}, yesterday, None, {"gamma_gradients": 0.95}),
    "pipegcn-gf": ({"gamma": "0.8"}, yesterday, None, {"gamma_features": 0.8, "gamma_gradients": 0.8}),
    "sylvie-s": ({}, today, bits(1), {}),
    "sylvie-a": ({"bits": "2"}, yesterday, bits(2), {}),
    "sylvie-a-bounded": ({"bits": "2", "refresh": "3"}, yesterday_but_every_third, bits(2), {}),
    "varco": ({"c_max": "9", "slope": "2"}, today, columns(falling), {}),
    "varco-slow": ({"c_max": "9"}, today, columns(falling, every_layer=True), {}),
    "fixed": ({}, today, columns(lambda t: 4.0), {}),
    "free": (FREE, yesterday, bits(2, Half()), {"gamma_features": 0.8, "gamma_gradients": 0.8}),
}


def oracle(name, ranks, model, case=CASE, *, narrow=False):
    _, read, wire, smoothing = EQUATIONS[name]
    graph, assignment = case(ranks)
    part = torch.from_numpy(assignment.part.copy())
    options = smoothing if wire is None else {**smoothing, "cross": wire(graph, part)}
    return stale_trace(graph, part, model, read, STEPS, narrow_first=narrow, input_ahead=True, **options)


def trace(transport, strategy, model, case=CASE):
    return train_trace(transport, case, model, STEPS, strategy=strategy)


def named(name, **options):
    return STRATEGIES.make(name, **EQUATIONS[name][0], **options)


def test_every_recipe_has_its_equations():
    others = {"none", "gnnpipe", "gnnpipe-hybrid"}  # tested in test_stale.py and test_pipeline.py
    others |= {"bns", "adaqp", "sancus", "cd-r"}  # tested in test_halos.py
    others |= {"steady"}  # tested in test_lateness.py
    others |= {"auto"}  # replaced by another strategy before a run begins
    assert {*EQUATIONS, *others} == {*STRATEGIES}


@pytest.mark.sweep
@pytest.mark.parametrize("model", [SAGE, GCN], ids=["sage", "gcn"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_recipes_equal_their_equations(name, model):
    assert_same(run_threads(3, trace, named(name), model), *oracle(name, 3, model))


@pytest.mark.sweep
@pytest.mark.parametrize("case", ["directed", "wide"])
@pytest.mark.parametrize("model", [SAGE, GAT], ids=["sage", "gat"])
@pytest.mark.parametrize(
    "name", ["pipegcn", "pipegcn-gf", "sylvie-s", "sylvie-a", "varco", "varco-slow", "fixed", "free"]
)
def test_narrow_recipes_equal_their_equations(name, model, case):
    """With narrow=true the last layer's rows are mapped before they cross; sparse input is precomputed as always."""
    traces = run_threads(3, trace, named(name, narrow="true"), model, CASES[case])
    assert_same(traces, *oracle(name, 3, model, CASES[case], narrow=True))
    assert not any(rank_state.startswith("layer0") for rank_state in traces[0]["state"])


def in_turn(transport, strategies):
    return [anew(transport, trace, strategy, SAGE) for strategy in strategies]


def test_recipes_equal_their_equations_in_processes():
    """All in one pair of processes, because starting them takes seconds."""
    ranks = run_processes(2, in_turn, [named(name) for name in EQUATIONS])
    for name, *traces in zip(EQUATIONS, *ranks, strict=True):
        assert_same(traces, *oracle(name, 2, SAGE))


def test_free_wires_ride_on_tiles():
    """Late tiles with few bits, which no paper has; fresh tiles in full precision are exact."""
    recipe = STRATEGIES.make("free", placement="mixture", schedule="sync", codec="full")
    assert_same(run_threads(3, trace, recipe, SAGE), *oracle("mixgcn", 3, SAGE))
    late = STRATEGIES.make("free", placement="mixture", schedule="pipelined", codec="lowbit", bits="8")
    (one, *_), (other, *_) = (run_threads(3, trace, r, SAGE) for r in (late, recipe))
    assert not torch.equal(one["losses"], other["losses"])


VANILLA = {
    "codec full": Wire(codec=Full(), backward=Full()),
    "rate 1": Wire(codec=Subsample(1.0)),
    "rate 1, rescaled": Wire(codec=Subsample(1.0, rescale=True)),
    "refresh 1": Wire(schedule=Bounded(1)),
    "every 1": Wire(schedule=Skip(1)),
    "nothing dropped to feed back": Wire(feedback=True),
    "an average that forgets": Wire(smooth=Smooth(gamma=0.0)),
    "always warming up": Wire(schedule=Pipelined(STEPS, STEPS)),
    "varco from 1 to 1": recipes.varco(c_max=1, c_min=1).wires(epochs=STEPS, layers=3),
    "fixed at 1": recipes.fixed(ratio=1).wires(epochs=STEPS, layers=3),
}


def test_settings_that_are_vanilla_to_the_bit():
    traces = {
        name: run_threads(3, train_trace, CASE, SAGE, STEPS, wires, False, True, "cpu", 0.05, False)[0]
        for name, wires in {"vanilla": recipes.vanilla().wires(epochs=STEPS, layers=3), **VANILLA}.items()
    }
    want = traces.pop("vanilla")
    for name, got in traces.items():
        assert torch.equal(got["losses"], want["losses"]), name
        for one, other in zip(got["grads"], want["grads"], strict=True):
            assert all(torch.equal(one[weight], other[weight]) for weight in one), name


def test_a_refresh_of_every_step_is_sylvie_s():
    late, sync = (run_threads(3, trace, r, SAGE) for r in (recipes.sylvie_a(refresh=1), recipes.sylvie_s()))
    assert torch.equal(late[0]["losses"], sync[0]["losses"])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("free", {"schedule": "never"}, "schedule 'never' is unknown; known: sync, pipelined, bounded, skip, steady"),
        ("gnnpipe", {"schedule": "steady"}, "schedule=steady measures whole layers"),
        ("gnnpipe-hybrid", {"halo_schedule": "steady"}, "halo_schedule=steady measures whole layers"),
        ("free", {"most": "0"}, "most=0: above 0 and at most 1"),
        ("free", {"most": "0.5", "turns": "2"}, "share, turns and bound choose rows too"),
        ("pipegcn", {"extrapolate": "true"}, "add -o smooth=gf"),
        ("pipegcn", {"exact_from": "2"}, "exact_from=2: at least 0 and at most 1"),
        ("free", {"codec": "zip"}, "codec 'zip' is unknown; known: full, half"),
        ("free", {"backward": "zip"}, "backward 'zip' is unknown"),
        ("free", {"smooth": "x"}, "smooth=x: one of nothing, f, g, gf"),
        ("free", {"lag": "0"}, "lag=0: at least 1"),
        ("free", {"bits": "3"}, "bits=3 does not pack into bytes; choose one of 1, 2, 4, 8"),
        ("sylvie-s", {"adaptive": "true", "tau": "0"}, "tau=0: at least 1"),
        ("sylvie-a", {"adaptive": "true", "bits": "16"}, "bits=16 does not pack"),
        ("sylvie-a", {"adaptive": "true", "warm_up": "5"}, "warm_up=5 have no effect with adaptive=true"),
        ("sylvie-s", {"tau": "5"}, "add -o adaptive=true"),
        ("pipegcn", {"gamma": "0.5"}, "add -o smooth=gf"),
        ("free", {"correct": "true"}, "add -o smooth=gf"),
        ("free", {"longest": "3"}, "add -o bound=0.3"),
        ("sylvie-a-bounded", {"adaptive": "true"}, "use --strategy sylvie-a without them"),
        ("sylvie-a", {"refresh": "-1"}, "refresh=-1: at least 0"),
        ("varco", {"slope": "0"}, "slope=0.0: at least 1e-09"),
        ("fixed", {"ratio": "0.5"}, "ratio=0.5: at least 1"),
        ("pipegcn", {"smooth": "f", "gamma": "1"}, "gamma=1.0: at least 0 and below 1"),
    ],
)
def test_bad_options_name_the_fix(name, options, text):
    with pytest.raises(InputError, match=re.escape(text)):
        STRATEGIES.make(name, **options)
