"""Late rows: their error is measured, and a run that hardly learns prints a note."""

from functools import partial
from types import SimpleNamespace

import pytest

import fullgraph as fg
from fullgraph.codec import Full
from fullgraph.exchange import Bounded, Pipelined, Sync, Wire
from fullgraph.report.losses import hardly_learns, swings
from fullgraph.testing import run_threads
from fullgraph.train.callbacks import StaleWarning, fixes_for
from fullgraph.train.config import TrainConfig
from tests.support import CASES, trainer_of


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
    """With any dropout masks: only rows before any dropout are compared."""
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


def test_losses_that_are_small_by_now_may_swing():
    steady = [2.0 * 0.97**epoch for epoch in range(100)]
    assert steady[-1] < 0.1 * steady[0]
    assert not swings([loss * (2.0 if epoch % 3 else 1.0) for epoch, loss in enumerate(steady)])


def told(losses, late=None, fixes="--strategy adaqp"):
    """The note of a run with such losses."""
    trained, look = SimpleNamespace(records=[]), StaleWarning(fixes)
    for epoch, loss in enumerate(losses, 1):
        trained.records.append(SimpleNamespace(epoch=epoch, loss=loss, late=late if epoch % 20 == 19 else None))
        look(trained, trained.records[-1])


def test_a_run_says_once_that_its_loss_swings(capsys):
    """Checked after 50, 75 and 100 epochs."""
    told([0.99**epoch * (1.0 if epoch < 60 or epoch % 3 == 0 else 1.5) for epoch in range(150)])
    (text,) = capsys.readouterr().err.splitlines()
    assert "the loss swings" in text
    assert text.endswith("if --strategy vanilla does better, try --strategy adaqp")


def test_a_run_that_learns_says_nothing_however_late_its_rows_are(capsys):
    told([2.0 * 0.98**epoch for epoch in range(150)], late=1.0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("method", ["metis", "metis-cut", "fennel", "random", "contiguous", "own.py:Mine"])
def test_nothing_is_advised_that_is_set_already(method, averaged):
    found = fixes_for(method=method, averaged=averaged)
    assert ("--partitioner metis" in found) is (method in ("random", "contiguous", "own.py:Mine"))
    assert ("pipegcn-gf" in found) is not averaged
    assert "adaqp" in found


def test_the_readmes_first_example_says_nothing(tmp_path, capfd):
    """It scores like exact training."""
    model = fg.nn.GraphSAGE(layers=3, hidden=128)
    fg.train(fg.load("demo"), model=model, strategy="pipegcn", parts=2, epochs=75, out=tmp_path / "run")
    assert "note:" not in capfd.readouterr().err
