"""Late rows: how far off they were is measured, and a run that hardly learns says so."""

import pytest

import fullgraph as fg
from fullgraph.codec import Full
from fullgraph.exchange import Bounded, Pipelined, Sync, Wire
from fullgraph.testing import CASES, run_threads, trainer_of
from fullgraph.train.config import TrainConfig
from fullgraph.train.slowness import hardly_learns


def late(transport, schedule, lr):
    config = TrainConfig(epochs=41, lr=lr, dtype="float64", eval_every=100)
    spec = fg.nn.GraphSAGE(layers=3, hidden=8, dropout=0.0)
    trainer = trainer_of(transport, CASES["undirected"], spec, config, Wire(schedule=schedule, codec=Full()), False)
    trainer.fit([])
    return [record.late for record in trainer.records]


@pytest.mark.parametrize("schedule", [Pipelined(), Bounded(7)], ids=str)
def test_late_rows_are_compared_with_fresh_ones_now_and_then(schedule):
    for found in run_threads(3, late, schedule, 0.01):
        assert [epoch for epoch, value in enumerate(found, 1) if value is not None] == [20, 40]
        assert all(0 < value < 1 for value in (found[19], found[39]))


def test_rows_that_stand_still_are_not_off():
    for found in run_threads(2, late, Pipelined(), 1e-300):
        assert (found[19], found[39]) == (0.0, 0.0)


def test_fresh_rows_are_not_late():
    for found in run_threads(2, late, Sync(), 0.01):
        assert not any(value is not None for value in found)


def test_losses_that_hardly_fall():
    assert "hardly fallen in 50 epochs (2.1 to 2)" in hardly_learns([2.1, *[7.0] * 39, *[2.0] * 10])
    assert not hardly_learns([2.1, *[1.5] * 49])
