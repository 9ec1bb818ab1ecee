"""A user's data format: a function, or a frozen dataclass with options, in a file outside the package."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import fullgraph as fg
from fullgraph.data.loaders import check_name
from fullgraph.errors import InputError
from tests.support import random_graph

EDGE_LIST = Path(__file__).resolve().parents[2] / "docs" / "extending" / "edge_list.py"
LOADERS = """
from dataclasses import dataclass

import torch
import fullgraph as fg

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])

def graph():
    return fg.Graph(EDGES, torch.eye(3), [0, 1, 1], {name: [i] for i, name in enumerate(("train", "val", "test"))})

def data():
    from torch_geometric.data import Data
    whole = graph()
    masks = {f"{name}_mask": torch.arange(3) == i for i, name in enumerate(("train", "val", "test"))}
    return Data(x=torch.eye(3), edge_index=EDGES, y=torch.tensor([0, 1, 1]), **masks)

def typed():
    return fg.load_typed("typed:nodes=50,types=2,relations=2")

def nothing():
    pass

def breaks():
    return {}["edges"]

def unfit():
    return fg.Graph(EDGES + 1, torch.eye(3), [0, 1, 1])

@dataclass(frozen=True)
class NotCalled:
    seed: int = 0
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOADERS)
    shutil.copy(EDGE_LIST, tmp_path)
    graph = random_graph(nodes=50, arcs=200)
    np.savetxt("e.txt", graph.edge_index.T, fmt="%d")
    np.savetxt("labels.txt", np.abs(graph.y), fmt="%d")
    return graph


def test_a_value_with_options(here):
    graph = fg.load("edge_list.py:EdgeList,edges=e.txt,seed=3")
    np.testing.assert_array_equal(graph.edge_index, here.edge_index)
    np.testing.assert_array_equal(graph.y, np.abs(here.y))
    other = fg.load("edge_list.py:EdgeList,edges=e.txt,seed=4")
    assert (graph.train_mask != other.train_mask).any()


def test_a_function_that_returns_pyg_data(here):
    pytest.importorskip("torch_geometric", reason="the extra pyg")
    graph, data = fg.load("mine.py:graph"), fg.load("mine.py:data")
    for name in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(data, name))


def test_it_trains_resumes_and_predicts_without_its_file(here):
    """The file is read when the graph is partitioned, and never again."""
    graph = "edge_list.py:EdgeList,edges=e.txt"
    fg.train(graph, parts=2, epochs=2, checkpoint_every=1, out="run")
    Path("edge_list.py").unlink()
    assert fg.resume("run", epochs=3).result["epochs"] == 3
    assert fg.Run.read(Path("run")).graph == graph
    assert len(fg.predict("run", out="again").classes) == here.num_nodes


def test_a_typed_graph(here):
    assert len(fg.load_typed("mine.py:typed").nodes) == 2
    with pytest.raises(InputError, match="is a typed graph"):
        fg.load("mine.py:typed")


WRONG = {
    "mine.py:nothing": "mine.py:21: a NoneType is not a graph; give a fullgraph.Graph, a PyG Data object, or demo",
    "mine.py:breaks": "mine.py:25: KeyError: 'edges'",
    "mine.py:unfit": "mine.py:28: edge_index holds the node id 3",
    "mine.py:NotCalled": "mine.py:30: mine.py:NotCalled is no format of graphs: it has no __call__",
    "mine.py:graph,seed=3": "format of graphs 'mine.py:graph' is a function, which has no option seed",
    "mine.py:missing": "mine.py has no missing; it has",
    "none.py:graph": "none.py: it does not exist",
    "edge_list.py:EdgeList,sed=3": "has no option sed (did you mean seed?); known: edges=edges.txt, labels=labels.txt",
    "edge_list.py:EdgeList,seed": "edge_list.py:EdgeList seed: write it as KEY=VALUE",
    "edge_list.py:EdgeList,seed=x": "seed=x: a whole number",
    "sbn:nodes=5": "'sbn:nodes=5' is not the name of a graph (did you mean sbm?): give demo, FILE.npz",
    "nowhere:graph": "'nowhere:graph' is not the name of a graph: give demo",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(name, here):
    with pytest.raises(InputError) as caught:
        fg.load(name)
    assert WRONG[name] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_is_checked_without_reading_the_graph(here):
    check_name("mine.py:breaks")
    for name in ("mine.py:NotCalled", "mine.py:missing", "nowhere:graph"):
        with pytest.raises(InputError):
            check_name(name)
