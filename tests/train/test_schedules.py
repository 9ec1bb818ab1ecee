"""Schedules over a run: their length is the run's first length, whatever is added later."""

import pytest

import fullgraph as fg
from fullgraph.train.config import TrainConfig
from fullgraph.train.optimizer import learning_rate
from tests.support import random_graph


@pytest.mark.parametrize("kind", ["cosine", "step"])
def test_more_epochs_keep_the_learning_rates(kind):
    first = TrainConfig(epochs=20, lr_schedule=kind)
    longer = TrainConfig(epochs=30, schedule_epochs=20, lr_schedule=kind)
    assert [learning_rate(longer, epoch) for epoch in range(20)] == [learning_rate(first, epoch) for epoch in range(20)]
    assert {learning_rate(longer, epoch) for epoch in range(20, 30)} == {learning_rate(first, 19)}


def test_a_continued_run_keeps_its_strategys_schedule(tmp_path):
    """VARCO sends few columns early; epochs added at the end send all columns, unless told otherwise."""
    options = {"strategy": "varco", "parts": 2, "epochs": 4, "checkpoint_every": 4, "out": tmp_path / "run"}
    run = fg.train(random_graph(), model=fg.nn.GraphSAGE(layers=3, hidden=64), **options)
    sent = [record.bytes for record in run.metrics]
    assert sent[0] < sent[-1], "otherwise this test shows nothing"
    longer = fg.resume(run.folder, epochs=6)
    assert [record.bytes for record in longer.metrics] == [*sent, sent[-1], sent[-1]]
    anew = fg.resume(run.folder, epochs=8, schedule_epochs=800)
    assert [record.bytes for record in anew.metrics][6:] == [sent[0], sent[0]]
