"""Epochs count from 1 wherever a person or a script reads them."""

import json

import pytest

import fullgraph as fg
from fullgraph.errors import InputError
from fullgraph.report import read_metrics, read_outcome
from fullgraph.storage import sealed
from tests.support import random_graph


def test_the_first_epoch_is_1_everywhere(tmp_path, capfd):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = fg.train(random_graph(), epochs=4, eval_every=2, checkpoint_every=2, tensorboard=True, out=tmp_path / "run")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert [record.epoch for record in run.metrics] == [1, 2, 3, 4]
    scored = {line["epoch"]: line["val"] for line in lines if "val" in line}
    assert set(scored) == {2, 4}
    best = run.result["best_epoch"]
    assert best == min(epoch for epoch in scored if scored[epoch] == max(scored.values()))
    assert run.result["val"] == scored[best]
    assert run.result["time_to_best_s"] == pytest.approx(sum(line["epoch_s"] for line in lines[:best]))
    assert read_outcome(run.folder).best_epoch == best
    assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == ["epoch-00000002", "epoch-00000004"]
    state = json.loads((run.folder / "checkpoints" / "epoch-00000004" / "state.json").read_text())
    assert (state["epoch"], state["best"]["epoch"]) == (4, best)
    said = capfd.readouterr().out
    assert "epoch 2/4" in said
    assert "epoch 4/4" in said
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("val")] == [2, 4]


def test_a_log_that_starts_at_0_is_refused(tmp_path):
    record = {"epoch": 0, "loss": 1.0, "lr": 0.1, "epoch_s": 1.0, "wait_s": 0.0, "bytes": 0, "grad_bytes": 0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(sealed(record)) + "\n")
    with pytest.raises(InputError, match="epoch=0: at least 1"):
        read_metrics(tmp_path / "metrics.jsonl")
