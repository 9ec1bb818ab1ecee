"""The callbacks of docs/extending.md for MLflow and W&B receive what metrics.jsonl has."""

from dataclasses import asdict
from pathlib import Path

import pytest

import fullgraph as fg
from fullgraph.reference import load
from tests.support import random_graph

FILES = Path(__file__).resolve().parents[2] / "docs" / "extending"


def trained(callback, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = {"epochs": 4, "eval_every": 2, "threads": 1, "callbacks": [callback]}
    return fg.train(random_graph(), model=fg.nn.GCN(layers=2, hidden=4), parts=2, out="run", **options)


def test_mlflow(tmp_path, monkeypatch):
    """Its store in a folder."""
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed: pip install -c constraints.txt mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones ask for it; a database needs SQLAlchemy
    kind = load(f"{FILES / 'to_mlflow.py'}:MLflow")
    run = trained(kind(store="mlruns", experiment="mine"), monkeypatch, tmp_path)
    (kept,) = [path.parent for path in (tmp_path / "mlruns").glob("*/*/meta.yaml")]
    assert "status: 3" in (kept / "meta.yaml").read_text()  # it has ended
    for name in ("loss", "val", "bytes"):
        lines = [line.split() for line in (kept / "metrics" / name).read_text().splitlines()]
        wanted = [(record.epoch, asdict(record)[name]) for record in run.metrics if asdict(record)[name] is not None]
        assert [(int(step), float(value)) for _, value, step, *_ in lines] == wanted


def test_wandb(tmp_path, monkeypatch):
    """Offline: a file that W&B reads."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trained(f"{FILES / 'to_wandb.py'}:WandB", monkeypatch, tmp_path)
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"grad_bytes" in kept.read_bytes()


def test_a_callback_hears_of_the_end(tmp_path, monkeypatch):
    """Once, on rank 0, after the last epoch; also if a callback ends the run."""
    (tmp_path / "heard.py").write_text(
        "import os\nfrom dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Heard:\n"
        "    def __call__(self, record):\n        self.add(record.epoch)\n        return record.epoch == 3\n\n"
        "    def close(self):\n        self.add('end')\n\n"
        "    def add(self, text):\n        print(os.environ['RANK'], text, file=open('heard.txt', 'a'))\n"
    )
    trained(f"{tmp_path / 'heard.py'}:Heard", monkeypatch, tmp_path)
    assert (tmp_path / "heard.txt").read_text().splitlines() == ["0 1", "0 2", "0 3", "0 end"]
