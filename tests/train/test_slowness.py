"""Late rows: how far off they were is measured, and a run that hardly learns says so."""

from functools import partial
from types import SimpleNamespace

import pytest

import fullgraph as fg
from fullgraph.codec import Full
from fullgraph.exchange import Bounded, Pipelined, Sync, Wire
from fullgraph.testing import CASES, run_threads, trainer_of
from fullgraph.train.config import TrainConfig
from fullgraph.train.slowness import Slowness, hardly_learns, lingers, swings


def late(transport, schedule, lr, **options):
    config = TrainConfig(epochs=41, lr=lr, dtype="float64", eval_every=100)
    spec = fg.nn.GraphSAGE(layers=3, hidden=8, **{"dropout": 0.0, **options})
    trainer = trainer_of(transport, CASES["undirected"], spec, config, Wire(schedule=schedule, codec=Full()), False)
    trainer.fit([])
    return [record.late for record in trainer.records]


@pytest.mark.parametrize("schedule", [Pipelined(), Bounded(7), Bounded(10)], ids=str)
def test_late_rows_are_compared_with_fresh_ones_now_and_then(schedule):
    for found in run_threads(3, late, schedule, 0.01):
        assert [epoch for epoch, value in enumerate(found, 1) if value is not None] == [19, 39]
        assert all(0 < value < 1 for value in (found[18], found[38]))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rows_that_stand_still_are_not_off(dropout):
    """Whatever masks each step has: rows are compared that no dropout came before."""
    for found in run_threads(2, partial(late, dropout=dropout), Pipelined(), 1e-300):
        assert (found[18], found[38]) == (0.0, 0.0)


def test_dropout_of_the_input_leaves_nothing_to_compare():
    for found in run_threads(2, partial(late, dropout=0.5, input_dropout=True), Pipelined(), 0.01):
        assert not any(value is not None for value in found)


def test_fresh_rows_are_not_late():
    for found in run_threads(2, late, Sync(), 0.01):
        assert not any(value is not None for value in found)


def test_losses_that_hardly_fall():
    assert "hardly fallen in 50 epochs (2.1 to 2)" in hardly_learns([2.1, *[7.0] * 39, *[2.0] * 10])
    assert not hardly_learns([2.1, *[1.5] * 49])


def test_losses_that_swing():
    steady = [2.0 * 0.97**epoch for epoch in range(75)]
    assert not swings(steady)
    assert not swings([loss * (1.05 if epoch % 2 else 1.0) for epoch, loss in enumerate(steady)])
    unsteady = [2.0 if epoch % 3 else 1.0 for epoch in range(75)]
    assert "swings (2 times the best so far in epochs up to 75)" in swings(unsteady)


def test_losses_near_zero_may_swing():
    steady = [2.0 * 0.9**epoch for epoch in range(75)]
    assert steady[-1] < 0.02 * steady[0]
    assert not swings([loss * (3.0 if epoch % 3 else 1.0) for epoch, loss in enumerate(steady)])


def test_late_rows_that_come_no_nearer():
    assert not lingers([0.2, 0.3])  # too early to say
    assert "late rows are 20% off fresh ones, and were 6% off at first" in lingers([0.06, 0.05, 0.1, 0.2, 0.22])
    assert not lingers([0.3, 0.2, 0.1, 0.1])
    assert not lingers([0.01, 0.02, 0.03, 0.04])  # they are near enough


def test_what_rounding_adds_to_the_error_is_not_held_against_late_rows(capsys):
    """The loss falls as it should; only rows that cross as they are can be judged by their error."""
    for rounded in (False, True):
        trained, look = SimpleNamespace(records=[]), Slowness(rounded=rounded)
        for epoch in range(1, 101):
            late = 0.9 if epoch % 20 == 19 else None
            trained.records.append(SimpleNamespace(epoch=epoch, loss=2.0 * 0.99**epoch, late=late))
            look(trained, trained.records[-1])
        assert ("late rows are 90% off" in capsys.readouterr().err) is not rounded


def test_a_run_says_once_that_its_loss_swings(capsys):
    """Looked at after 50, 75, 100 epochs, and only where rows were late, or are by the strategy."""

    def told(off, **strategy):
        trained, look = SimpleNamespace(records=[]), Slowness(rounded=False, **strategy)
        for epoch in range(1, 151):
            loss = 0.97**epoch * (1.0 if epoch < 60 or epoch % 3 == 0 else 1.5)
            trained.records.append(SimpleNamespace(epoch=epoch, loss=loss, late=off if epoch == 19 else None))
            look(trained, trained.records[-1])
        return capsys.readouterr().err

    assert told(0.3).count("swings") == 1
    assert told(None) == ""
    assert told(None, late=True, averaged=True).count("try --partitioner metis, or --strategy vanilla") == 1
