"""`--log`: trackers receive settings, every number and the best scores, and never end a run."""

import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import pytest

import fullgraph as fg
from fullgraph.errors import InputError
from fullgraph.report import EpochRecord
from fullgraph.report.settings import settings_of
from fullgraph.storage import read_document
from fullgraph.train import trackers
from fullgraph.train.trackers import About, Tracking
from tests.support import random_graph

OPTIONS = {"epochs": 4, "eval_every": 2, "threads": 1}


def trained(folder, **options):
    return fg.train(random_graph(), model=fg.nn.GCN(layers=2, hidden=4), parts=2, out=folder, **OPTIONS, **options)


def settings(run):
    return {n: t for n, t in settings_of(read_document(run.folder / "config.json", fix="")).items() if n != "checksum"}


def test_mlflow(tmp_path, monkeypatch):
    """In processes; then resumed, which continues the same MLflow run."""
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed: pip install -c constraints.txt mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones ask for it; a database needs SQLAlchemy
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    run = trained(tmp_path / "run", log="mlflow")
    kept = stored(tmp_path, run)
    for name, text in settings(run).items():
        assert (kept / "params" / name).read_text() == text[:500]
    best = {"epoch": run.result["best_epoch"], "val": run.result["val"], "test": run.result["test"]}
    for name, value in best.items():
        assert float((kept / "metrics" / "best" / name).read_text().split()[1]) == value
    more = fg.resume(run.folder, epochs=6)
    stored(tmp_path, more)


def stored(tmp_path, run):
    """The folder of the only MLflow run, which has every number of the record."""
    (kept,) = [path.parent for path in (tmp_path / "mlruns").glob("*/*/meta.yaml")]
    assert "status: 3" in (kept / "meta.yaml").read_text()  # it has ended
    for name in ("loss", "val", "bytes", "row_wait_s"):
        lines = [line.split() for line in (kept / "metrics" / name).read_text().splitlines()]
        wanted = [(record.epoch, asdict(record)[name]) for record in run.metrics if asdict(record)[name] is not None]
        assert [(int(step), float(value)) for _, value, step, *_ in lines] == wanted
    return kept


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = trained(tmp_path / "run", log="tensorboard")
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [(event.step, event.value) for event in events.Scalars("best/test")] == [
        (run.result["best_epoch"], pytest.approx(run.result["test"])),
    ]  # fmt: skip
    (text,) = events.Tensors("settings/text_summary")
    assert b"train.lr: 0.01" in text.tensor_proto.string_val[0]


class StandIn(ModuleType):
    """What W&B documents of `init`, `log`, `summary` and `finish`; the package itself is not among our tools."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = SimpleNamespace(name="wandb")
        self.told, self.summary, self.broken = [], {}, False

    def init(self, **options):
        self.told.append(("init", options))
        return self

    def log(self, numbers, step):
        if self.broken:
            raise ConnectionError("no route to host")
        self.told.append((step, numbers))

    def finish(self):
        self.told.append(("finish", dict(self.summary)))


@pytest.fixture
def wandb(monkeypatch):
    module = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def record(epoch, **scores):
    return EpochRecord(epoch=epoch, loss=0.5, lr=0.1, epoch_s=1.0, wait_s=0.1, bytes=3, grad_bytes=1, **scores)


TRAINER = SimpleNamespace(best=SimpleNamespace(epoch=2, scores={"train": 0.9, "val": 0.8, "test": None}))
BEFORE = SimpleNamespace(best=SimpleNamespace(epoch=0, scores={}))


def test_wandb_hears_what_it_documents(wandb, tmp_path):
    tracking = Tracking("wandb", About(tmp_path / "mine", "a1b2", {"train.lr": "0.1"}, False))
    tracking(BEFORE, record(1))
    tracking(TRAINER, record(2, val=0.8))
    tracking.close()
    begin, first, second, end = wandb.told
    assert begin[1] == {
        "project": "fullgraph", "name": "mine", "id": "a1b2", "resume": "allow", "config": {"train.lr": "0.1"},
    }  # fmt: skip
    assert (first[0], first[1]["loss"], "val" in first[1]) == (1, 0.5, False)
    assert (second[0], second[1]["val"]) == (2, 0.8)
    assert end == ("finish", {"best/epoch": 2.0, "best/train": 0.9, "best/val": 0.8})


def test_a_tracker_that_fails_ends_no_run(wandb, tmp_path, capsys):
    tracking = Tracking("wandb", About(tmp_path, "a", {}, False))
    wandb.broken = True
    for epoch in (1, 2):
        tracking(BEFORE, record(epoch))
    tracking.close()
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "fullgraph: note: --log wandb failed (ConnectionError: no route to host); the run goes on without it"
    ]
    assert len(wandb.told) == 1


def test_a_package_that_is_not_there_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--log wandb needs an extra: pip install 'fullgraph\[wandb\]'"):
        trained(tmp_path / "run", log="wandb")
    assert not (tmp_path / "run").exists()
