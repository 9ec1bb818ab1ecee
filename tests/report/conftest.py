"""Runs for the tests of pages."""

import pytest

import fullgraph as fg
from fullgraph.data import Graph
from tests.support import random_graph

EVIL = "<script>document.title='evil'</script>\"&'<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def evil():
    """A name that a page must show and must not run."""
    return EVIL


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Three strategies on three ranks, on a graph with that name; one folder's name is markup too."""
    plain = random_graph(nodes=300, arcs=1500, features=12)
    masks = plain.train_mask, plain.val_mask, plain.test_mask
    graph = Graph(plain.edge_index, plain.x, plain.y, masks, name=EVIL)
    folder = tmp_path_factory.mktemp("runs")
    names = {"a <b>bold</b> & name": "sylvie-a", "plain": "vanilla", "late": "pipegcn"}
    options = {"model": fg.nn.GraphSAGE(layers=3, hidden=16), "parts": 3, "epochs": 25, "eval_every": 5}
    return {
        strategy: fg.train(graph, strategy=strategy, out=folder / name, **options).folder
        for name, strategy in names.items()
    }
