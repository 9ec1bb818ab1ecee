"""Runs of users' typed models: the example of the page, learned rows, resume and predictions."""

import copy
import json
import re
import shlex
import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("torch_geometric")

import numpy as np
import torch

import fullgraph as fg
from fullgraph.errors import InputError
from fullgraph.storage import read_tensors
from fullgraph.tasks import Link
from tests.own_typed import typed_cases as users
from tests.own_typed import typed_models
from tests.own_typed.test_users_typed import PAGE


def run(*command, cwd):
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_model_of_the_page_trains(tmp_path):
    page = PAGE.read_text()
    (program, *_), (model,) = (
        re.findall(r"```python\n(.*?)```", page, re.DOTALL),
        re.findall(r"```py\n(.*?)```", page, re.DOTALL),
    )
    (command,) = re.findall(r"```sh\nfullgraph (.*?)\n```", page)
    run("-c", program.replace("epochs=20", "epochs=1"), cwd=tmp_path)
    (tmp_path / "my_hetero.py").write_text(model)
    run("-m", "fullgraph", *shlex.split(command), "--out", "run", cwd=tmp_path)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["model"] == "my_hetero.py:Net"
    assert result["epochs"] == 10


SMALL = {"report": False, "dtype": "float64", "optimizer": "sgd", "lr": 0.05}


def test_a_run_resumes_and_predicts(tmp_path):
    """A resumed run has the losses of a whole one; predictions are those of plain PyG with the run's weights."""
    graph = users.users_graph(featureless=True)
    run = fg.train(graph, model=typed_models.hetero_sage, parts=2, epochs=4, out=tmp_path / "whole", **SMALL)
    fg.train(graph, model=typed_models.hetero_sage, parts=2, epochs=2, out=tmp_path / "half", **SMALL)
    again = fg.resume(tmp_path / "half", epochs=4)
    assert [one.loss for one in again.metrics] == [one.loss for one in run.metrics]
    weights, _ = read_tensors(tmp_path / "whole" / "model.safetensors", fix="")
    assert weights["rows_of_venue"].shape == (6, 64)
    model, data = copy.deepcopy(run.model).double(), users.users_data(graph)
    with torch.no_grad():
        rows = {**data.x_dict, "venue": model.rows_of_venue}
        predicted = model(rows, data.edge_index_dict)["paper"].argmax(1)
    np.testing.assert_array_equal(run.predictions, predicted)
    np.testing.assert_array_equal(run.predict().classes, predicted)


def test_models_and_graphs_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    masks = tuple(np.arange(4) == split for split in range(3))
    homogeneous = fg.Graph(np.zeros((2, 1), int), np.ones((4, 2)), np.arange(4) % 2, masks)
    monkeypatch.setattr("fullgraph.preparing.cut", None)  # refused before the graph is partitioned
    for model in (typed_models.hetero_sage, typed_models.Mixed):
        with pytest.raises(InputError, match="takes dictionaries by type: give a typed graph"):
            fg.train(homogeneous, model=partial(model, hidden=4) if model is typed_models.Mixed else model, epochs=1)
    of_data, numbered = (typed_models.DictsOfData, "dictionaries by type"), (typed_models.rgat, "-m num_relations=")
    for model, words in (of_data, numbered):
        with pytest.raises(InputError, match=words):
            fg.train(homogeneous, model=model, epochs=1)
    with pytest.raises(InputError, match="inductive training keeps only the training nodes"):
        fg.train(users.users_graph(), model=typed_models.hetero_sage, inductive=True)
    with pytest.raises(InputError, match="link prediction on users reads those of two"):
        fg.train(users.users_graph(), model=typed_models.hetero_sage, task=Link(relation="author__writes__paper"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
