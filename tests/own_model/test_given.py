"""A model may be given as an instance, a lambda, a function or `FILE:function`, and a callback as a closure."""

import copy
import json

import numpy as np
import pytest
import torch

import fullgraph as fg
from tests.own_model.users_kinds import FILE
from tests.support import random_graph

pytest.importorskip("torch_geometric")
pytest.importorskip("cloudpickle")

from tests.own_model import users_models as users

OPTIONS = {"epochs": 3, "dtype": "float64", "eval_every": 3}


def losses(run):
    return [record.loss for record in run.metrics]


def test_an_instance_begins_with_its_weights_and_stays_as_it_is(tmp_path):
    graph = random_graph()
    torch.manual_seed(5)
    model = users.GCN(graph.num_features, graph.num_classes)
    before = copy.deepcopy(model.state_dict())
    seen = []  # a closure as a callback
    runs = [
        fg.train(
            graph, model=model, parts=parts, out=tmp_path / f"{parts}", callbacks=(lambda r: seen.append(r),), **OPTIONS
        )
        for parts in (1, 2)
    ]
    np.testing.assert_allclose(losses(runs[0]), losses(runs[1]), rtol=1e-10)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    data = graph.to_pyg()
    logits = model.double()(torch.from_numpy(graph.x.copy()).double(), data.edge_index)
    mask = torch.tensor(graph.train_mask[:, 0])
    first = torch.nn.functional.cross_entropy(logits[mask], data.y.long()[mask])
    np.testing.assert_allclose(losses(runs[0])[0], first.detach(), rtol=1e-10)
    assert type(runs[1].model) is users.GCN


def test_a_lambda_a_function_and_its_name_are_the_same_model(tmp_path):
    graph, hidden, stop = random_graph(), 6, 2
    ways = {
        "name": f"{FILE}:make_net",
        "function": users.make_net,
        "lambda": lambda in_channels, out_channels, hidden=hidden: users.make_net(in_channels, out_channels, hidden),
    }
    runs = {}
    for way, model in ways.items():
        model = model if way == "lambda" else fg.axes.MODELS.make(f"{FILE}:make_net", hidden=hidden)
        runs[way] = fg.train(
            graph, model=model, parts=2, out=tmp_path / way, callbacks=(lambda record: record.epoch >= stop,), **OPTIONS
        )
    assert len(losses(runs["name"])) == stop
    assert losses(runs["name"]) == losses(runs["function"]) == losses(runs["lambda"])
    assert json.loads((tmp_path / "lambda" / "config.json").read_text())["model"]["name"].startswith("__main__:")


def test_a_constructor_of_bare_arguments_says_what_to_write(tmp_path):
    class Bare(torch.nn.Module):
        def __init__(self, *args):
            super().__init__()

    with pytest.raises(fg.InputError, match=r"takes \*args alone.*def make_net\(in_channels, out_channels\)"):
        fg.train(random_graph(), model=Bare, out=tmp_path / "run")
