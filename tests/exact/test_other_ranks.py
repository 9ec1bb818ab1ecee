"""A checkpoint on another number of ranks: the first epoch is exact for any schedule, and later ones can be resumed."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from fullgraph import nn
from fullgraph.codec import LowBit, MinVariance
from fullgraph.exchange import Adaptive, Bounded, Drift, Pipelined, Skip, Smooth, Wire
from fullgraph.testing import anew, run_threads
from fullgraph.train.config import TrainConfig
from tests.support import CASES, differing, saved_epochs

SAGE = nn.GraphSAGE(layers=3, hidden=8, dropout=0.5)
EPOCHS, AT = 9, 4  # the graph is cut again before epoch 5, in the middle of the schedules
CONFIG = TrainConfig(epochs=EPOCHS, eval_every=2, checkpoint_every=1, dtype="float64", schedule_epochs=EPOCHS)

FULL = {
    "pipelined": Wire(schedule=Pipelined(2)),
    "skip": Wire(schedule=Skip(3)),
    "smooth": Wire(schedule=Pipelined(), smooth=Smooth(gamma=0.9)),
    "corrected": Wire(schedule=Bounded(6), smooth=Smooth(gamma=0.9, correct=True)),
    "turns": Wire(schedule=Pipelined(), turns=3),
    "drift": Wire(drift=Drift(bound=0.9, longest=3, gradients=True)),
}
LOSSY = {
    "fed back": Wire(schedule=Pipelined(), codec=LowBit(1), feedback=True, smooth=Smooth()),
    "bits by variance": Wire(codec=MinVariance(period=3), share=0.6, turns=2, feedback=True),
    "adaptive": Adaptive(tau=1, alpha=0.0, switch=True, feedback=True),
}


def start_of(wire):
    """A checkpoint of 4 ranks after some epochs, as ranks of another cut read it."""
    run = (CASES["directed"], SAGE, replace(CONFIG, epochs=AT), wire)
    tensors, scalars = run_threads(4, saved_epochs, *run)[0][1][-1]
    shared = {name: tensor for name, tensor in tensors.items() if not name.startswith("rank")}
    return shared, json.dumps({**json.loads(scalars), "began": AT})


@pytest.mark.parametrize("name", FULL)
def test_the_first_epoch_on_another_cut_is_exact(name):
    start, config = start_of(FULL[name]), replace(CONFIG, epochs=AT + 1)
    late, exact = (
        run_threads(ranks, partial(saved_epochs, start=start), CASES["directed"], SAGE, config, wire)[0]
        for ranks, wire in ((3, FULL[name]), (1, Wire()))
    )
    assert late[0][0] == pytest.approx(exact[0][0], rel=1e-12)
    weights = [
        {key: value for key, value in saved[1][1][0].items() if key.startswith("model.")} for saved in (late, exact)
    ]
    torch.testing.assert_close(*weights, rtol=1e-11, atol=1e-12)


def again_and_again(transport, start, *run):
    """The rest of a run after its graph was cut again, and the same resumed after each of its epochs."""
    whole = anew(transport, partial(saved_epochs, start=start), *run)
    return [whole, *(anew(transport, partial(saved_epochs, start=there), *run) for there in whole[1][1:-1])]


@pytest.mark.parametrize("name", [*FULL, *LOSSY])
def test_the_rest_can_be_interrupted_anywhere(name):
    wire = (FULL | LOSSY)[name]
    run = (CASES["directed"], SAGE, CONFIG, wire)
    for (losses, saved), *others in run_threads(3, again_and_again, start_of(wire), *run):
        for epoch, (late_losses, late_saved) in enumerate(others, 1):
            assert late_losses == losses[epoch:], f"resumed after {epoch} epochs"
            for want, got in zip(saved[epoch + 1 :], late_saved[1:], strict=True):
                assert differing(want, got) == [], f"resumed after {epoch} epochs"
