"""Resuming after any epoch with any options is bit-identical; saving and scoring have no effect on training."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from fullgraph import nn
from fullgraph.codec import BFloat16, Exponential, Full, Half, Linear, LowBit, MinVariance, Subsample
from fullgraph.exchange import (
    Adaptive,
    Bounded,
    Drift,
    Except,
    Extrapolate,
    Pipelined,
    Skip,
    Smooth,
    Steady,
    Sync,
    Wire,
)
from fullgraph.placement import History, Mixture, Partitioned, Pipeline
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import run_threads
from fullgraph.train.config import LR_SCHEDULES, TrainConfig
from fullgraph.train.optimizer import OPTIMIZERS
from tests.support import CASES, differing, resumed_epochs, saved_epochs

EPOCHS = 5
SAGE = nn.GraphSAGE(layers=3, hidden=8, dropout=0.5, input_dropout=True)
NORMED = nn.GraphSAGE(layers=3, hidden=8, norm="batch", residual=True)
SPECS = [NORMED, nn.GCN(layers=3, hidden=8, linear_layers=1), nn.GIN(layers=2, hidden=8), nn.GAT(layers=2, hidden=8)]
CONFIG = TrainConfig(epochs=EPOCHS, eval_every=3, checkpoint_every=1)
BOTH = Smooth(gamma=0.7, correct=True)
LATER = Subsample(Linear(steps=EPOCHS, c_max=8, slope=2))

WIRES = {
    "two late, one bit, fed back": Wire(schedule=Pipelined(2), codec=LowBit(1), smooth=BOTH, feedback=True),
    "bounded, two bits, half back": Wire(schedule=Bounded(3), codec=LowBit(2), backward=Half(), smooth=Smooth()),
    "skip, columns, fed back": Wire(schedule=Skip(3), codec=LATER, feedback=True),
    "late columns, smooth": Wire(schedule=Pipelined(), codec=LATER, smooth=BOTH),
    "exact warm-up, bf16": Wire(schedule=Pipelined(3, 3), codec=BFloat16(), feedback=True),
    "adaptive, fed back": Adaptive(tau=1, alpha=0.0, switch=True, feedback=True),
    "late while rows hardly move": Wire(schedule=Steady(0.4), codec=LowBit(2)),
    "continued": Wire(schedule=Pipelined(2), smooth=Extrapolate()),
    "an exact end": Wire(schedule=Pipelined(), codec=LowBit(1), smooth=BOTH, feedback=True, exact_step=3),
    "layers differ": Except(wire=Wire(schedule=Pipelined()), layer=1, other=Wire(schedule=Skip(4), smooth=BOTH)),
}
CHANGED = Drift(bound=0.9, longest=2, gradients=True)
HALO_WIRES = {
    "sampled, bits by variance": Wire(codec=MinVariance(period=2), share=0.6, feedback=True),
    "late turns, skipped": Wire(schedule=Pipelined(2), turns=2, drift=CHANGED, smooth=BOTH),
    "most moved": Wire(schedule=Pipelined(), codec=LowBit(4), most=0.3, feedback=True, exact_step=4),
    "all of it": Wire(
        schedule=Pipelined(), codec=MinVariance(period=2, budget=3), share=0.6, turns=2, drift=CHANGED, feedback=True
    ),
}


# A run would measure here and could cut its layers differently: two runs are compared.
FIXED = {"gnnpipe": {"cut": "2"}, "gnnpipe-hybrid": {"freeze": 2}}
PIPES = {
    "stages, late hops, two bits": (3, {"cut": (1, 2), "hop": WIRES["bounded, two bits, half back"]}),
    "ways and stages": (
        4,
        {"cut": (1,), "ways": 2, "history": History(3, gradients="last"), "hop": WIRES["two late, one bit, fed back"]},
    ),
}

RUNS = {name: (wire,) for name, wire in (WIRES | HALO_WIRES).items()}
RUNS |= {f"tiles, {name}": (wire, True, False, Mixture) for name, wire in WIRES.items()}
RUNS |= {name: (None, True, False, None, STRATEGIES.make(name, **FIXED.get(name, {}))) for name in STRATEGIES}
RUNS |= {
    name: (WIRES["late columns, smooth"], False, False, partial(Pipeline, **options))
    for name, (_, options) in PIPES.items()
}
RANKS = dict.fromkeys(STRATEGIES, 2) | {name: ranks for name, (ranks, _) in PIPES.items()}


def drawn(seed):
    """Any combination of all axes: ranks, and the arguments of the body."""
    pick = Random(seed).choice
    placement = pick([Partitioned, Mixture])
    halo = placement is Partitioned  # whose rows may be fewer
    codecs = [
        MinVariance(period=2),
        Full(),
        Half(),
        LowBit(1),
        LowBit(4),
        Subsample(3.0),
        Subsample(Exponential(steps=EPOCHS)),
        LATER,
    ]
    wire = Wire(
        schedule=pick([Sync(), Pipelined(), Pipelined(2), Pipelined(3, 3), Bounded(3), Skip(2), Skip(4), Steady(0.4)]),
        codec=pick(codecs),
        backward=pick([None, *codecs]),
        smooth=pick([None, BOTH, Smooth(features=False), Smooth(gradients=False), Extrapolate()]),
        exact_step=pick([None, None, 3]),
        feedback=pick([False, True]),
        share=pick([1.0, 0.5]) if halo else 1.0,
        turns=pick([1, 1, 3]) if halo else 1,
        drift=pick([None, CHANGED]) if halo else None,
    )
    config = replace(
        CONFIG,
        optimizer=pick(list(OPTIMIZERS)),
        lr_schedule=pick(LR_SCHEDULES),
        dtype=pick(["float32", "float64"]),
        eval_every=pick([1, 2, 3]),
        patience=pick([0, 2]),
        inductive=pick([False, True]),
        precompute=pick([False, True]),
    )
    ranks, case, spec, narrow_first = pick([2, 3]), CASES[pick(list(CASES))], pick(SPECS), pick([False, True])
    return ranks, case, spec, config, wire, narrow_first, False, placement


def assert_resumes_anywhere(ranks, *run):
    """A rank resumed after any epoch has the losses, and the state, of one that never stopped."""
    for (losses, saved), *again in run_threads(ranks, resumed_epochs, *run):
        for epoch, (late_losses, late_saved) in enumerate(again):
            assert late_losses == losses[epoch:], f"resumed after {epoch} epochs"
            for done, (want, got) in enumerate(zip(saved[epoch:], late_saved, strict=True), epoch):
                assert differing(want, got) == [], f"resumed after {epoch} epochs, compared after {done}"


@pytest.mark.parametrize("name", RUNS)
def test_resuming_anywhere_is_bit_identical(name):
    assert_resumes_anywhere(RANKS.get(name, 3), CASES["directed"], SAGE, CONFIG, *RUNS[name])


@pytest.mark.parametrize("seed", range(16))
def test_resuming_any_point_of_the_axes_is_bit_identical(seed):
    assert_resumes_anywhere(*drawn(seed))


@pytest.mark.parametrize("name", RUNS)
def test_neither_scoring_nor_saving_disturbs_training(name):
    """Evaluation is exact and has its own channels; a checkpoint waits for messages, and removes none."""
    ends = replace(CONFIG, eval_every=EPOCHS, checkpoint_every=EPOCHS)
    quiet, busy = (
        run_threads(RANKS.get(name, 2), saved_epochs, CASES["undirected"], SAGE, config, *RUNS[name])
        for config in (ends, replace(CONFIG, eval_every=1))
    )
    for (losses, saved), (busy_losses, busy_saved) in zip(quiet, busy, strict=True):
        assert busy_losses == losses
        changed = differing(saved[-1], busy_saved[-1])
        assert [name for name in changed if not name.startswith("best")] == []
