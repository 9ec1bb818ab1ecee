"""A run without a model uses its task's default model, with the options that the user chose."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fullgraph as fg
from fullgraph import nn
from fullgraph.axes import TASKS
from fullgraph.preparing import new_folder, with_task
from fullgraph.run import Run
from fullgraph.tasks import Classification, Link

LINKS = nn.GCN(layers=2, dropout=0.0, norm="none")


def asked(monkeypatch, *words):
    """The run that a command line describes."""
    from fullgraph import api, cli

    seen = []

    def start(run, *_, **__):
        seen.append(run)
        raise fg.InputError("that was all")

    monkeypatch.setattr(api, "start", start)
    CliRunner().invoke(cli.app, ["train", "demo", *words])
    return seen[0]


@pytest.mark.parametrize(
    ("words", "links", "nodes"),
    [
        ([], LINKS, nn.GraphSAGE()),
        (["--layers", "3"], nn.GCN(layers=3, dropout=0.0, norm="none"), nn.GraphSAGE(layers=3)),
        (["--hidden", "32", "--norm", "layer"], nn.GCN(layers=2, hidden=32, dropout=0.0), nn.GraphSAGE(hidden=32)),
        (["-m", "dropout=0.5"], nn.GCN(layers=2, norm="none"), nn.GraphSAGE()),
        (["--model", "sage"], nn.GraphSAGE(), nn.GraphSAGE()),
        (["--model", "gin", "--layers", "4"], nn.GIN(layers=4), nn.GIN(layers=4)),
    ],
    ids=str,
)
def test_options_that_somebody_chose_stay(monkeypatch, words, links, nodes):
    run = asked(monkeypatch, *words)
    assert with_task(run, Link()).model == links
    assert with_task(run, Classification()).model == nodes
    assert type(with_task(run, Classification()).model) is type(nodes)


def test_an_option_of_another_model_is_refused():
    from fullgraph import cli

    done = CliRunner().invoke(cli.app, ["train", "demo", "--heads", "2"])
    assert "--heads is an option of --model gat or rgat or hgt, not of sage; leave it out" in str(done.exception)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_usual_model(task):
    name, options = TASKS[task].usual
    assert nn.Usual().settled(name, options) == nn.MODELS.make(name, **options)


def test_it_is_what_the_run_says(tmp_path):
    graph = fg.load("sbm:nodes=200,edges=600")
    for task, name in (("link", "gcn"), ("auto", "sage")):
        run = fg.train(graph, task=task, epochs=1, report=False, out=tmp_path / task)
        assert run.result["model"] == name
        assert json.loads((run.folder / "config.json").read_text())["model"]["name"] == name
        assert new_folder(Run(model=nn.Usual(), train=Run.read(run.folder).train), None).name.startswith(
            f"demo-{name}-"
        )
    pairs = Link().prepared(graph, 0).pairs
    links = fg.Graph(graph.edge_index, graph.x, pairs=pairs)
    assert fg.train(links, epochs=1, report=False, out=tmp_path / "pairs").result["model"] == "gcn"  # found by `auto`
    again = fg.resume(tmp_path / "link", epochs=2)
    assert (again.result["model"], again.result["epochs"]) == ("gcn", 2)
    assert np.isfinite(again.predictions).all()
