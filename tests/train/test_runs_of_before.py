"""Runs of an older version: resumed, predicted, reported, compared and used as a config by this one.

`runs_of_before.json` holds the folders of runs of commit e5238f7, with 4 epochs, and the losses that the same code had
after 2 more:

    fullgraph train g.npz --parts 2 --epochs 4 --checkpoint-every 2 --hidden 4 --layers 3 --dropout 0.3 --dtype float64 ...
    free:   --strategy free -o codec=adaqp -o period=2 -o share=0.6 -o smooth=gf -o feedback=true
    tiles:  --strategy free -o placement=mixture -o schedule=skip -o codec=lowbit -o bits=4
    pipe:   --strategy gnnpipe --model gcnii
"""  # noqa: E501

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import fullgraph as fg
from fullgraph.lab.html import write_report
from fullgraph.options import run_of
from fullgraph.report import read_outcome
from fullgraph.report.tables import Compared

RUNS = json.loads((Path(__file__).parent / "runs_of_before.json").read_text())


@pytest.fixture(params=RUNS)
def before(request, tmp_path):
    """A run's folder, and the losses of 6 epochs."""
    run = RUNS[request.param]
    for name, content in run["files"].items():
        path = tmp_path / request.param / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            path.write_bytes(zlib.decompress(base64.b64decode(content["base64"])))
    return tmp_path / request.param, run["losses"]


def test_it_is_resumed(before):
    folder, losses = before
    run = fg.resume(folder, epochs=6)
    assert [record.loss for record in run.metrics] == pytest.approx(losses, rel=1e-6)


def test_it_is_predicted(before):
    folder, _ = before
    probabilities = fg.FinishedRun(folder).probabilities
    fg.predict(folder, out=folder.parent / "again")
    np.testing.assert_allclose(np.load(folder.parent / "again" / "probabilities.npy"), probabilities, atol=1e-6)


def test_it_is_reported_and_compared(before):
    folder, _ = before
    assert (folder / "report.html").stat().st_size == 500  # only the beginning of its page is kept
    page = write_report(folder).read_text()
    assert "</html>" in page
    assert Compared.of(folder, read_outcome(folder), None).test == fg.FinishedRun(folder).result["test"]


def test_its_config_starts_a_run(before):
    folder, _ = before
    run = run_of({"config": folder / "config.json", "epochs": 3})
    assert (run.train.epochs, run.strategy) == (3, fg.Run.read(folder).strategy)
