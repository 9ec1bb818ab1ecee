"""Prediction on another typed graph with the same types and relations."""

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph import nn
from fullgraph.data import TypedGraph, load_typed, save_npz
from fullgraph.errors import InputError
from fullgraph.tasks import Link
from tests.typed.oracle import DenseTyped

SPECS = {"rgcn": nn.RGCN(layers=2, hidden=8), "hgt": nn.HGT(layers=2, hidden=8, heads=2)}
RELATIONS = [("author", "writes", "paper"), ("paper", "written_by", "author"), ("paper", "cites", "paper")]


def graph_of(seed, *, labels=True, authors=30, papers=40, order=1, **changes) -> TypedGraph:
    """Papers, authors with features, and a type that may have none; order=-1 turns types and relations round."""
    rng = np.random.default_rng(seed)
    nodes = {"author": {"x": rng.standard_normal((authors, 5))}, "paper": {"x": rng.standard_normal((papers, 7))}}
    nodes["paper"]["names"] = [f"{seed}-{i}" for i in range(papers)]
    if labels:
        masks = {f"{name}_mask": np.arange(papers) % 3 == i for i, name in enumerate(("train", "val", "test"))}
        nodes["paper"] |= {"y": np.arange(papers) % 4, **masks}
    sizes = {"author": authors, "paper": papers}
    edges = {name: np.stack([rng.integers(0, sizes[end], 90) for end in name[::2]]) for name in RELATIONS}
    nodes |= changes.get("nodes", {})
    edges |= changes.get("edges", {})
    for name in changes.get("without", ()):
        nodes.pop(name, None)
        edges.pop(name, None)
    turn = slice(None, None, order)
    return TypedGraph(dict(list(nodes.items())[turn]), dict(list(edges.items())[turn]), name=f"graph{seed}")


def trained(tmp_path, spec=None, graph=None, **options):
    small = {"epochs": 3, "dtype": "float64", "parts": 2, "report": False, "out": tmp_path / "run"}
    return fg.train(graph or graph_of(0), model=spec or nn.RGCN(layers=2, hidden=8), **{**small, **options})


@pytest.mark.parametrize("model", SPECS)
def test_predictions_equal_dense_equations(tmp_path, model):
    spec = SPECS[model]
    run = trained(tmp_path, spec)
    same = fg.predict(run, graph=graph_of(0, order=-1), parts=3, out=tmp_path / "same")
    np.testing.assert_allclose(same.probabilities, run.probabilities, rtol=1e-6, atol=1e-7)
    other = graph_of(1, labels=False, authors=11, papers=23, order=-1)
    found = fg.predict(run, graph=other, parts=3, out=tmp_path / "other")
    dense = DenseTyped(graph_of(1, authors=11, papers=23), spec)
    dense.model.load_state_dict(run.model.state_dict())
    dense.model.eval()
    dense.lengths = DenseTyped(graph_of(0), spec).lengths  # features are scaled as in training
    wanted = dense.logits(0).softmax(1)[11:].detach()
    torch.testing.assert_close(torch.tensor(found.probabilities).double(), wanted, rtol=1e-5, atol=1e-6)
    assert found.ids.tolist() == [f"1-{i}" for i in range(23)]


def test_scaled_features_and_reverses_are_those_of_the_run(tmp_path):
    run = trained(tmp_path, features="row", reverses=True)
    same = fg.predict(run, graph=graph_of(0, order=-1), out=tmp_path / "same")
    np.testing.assert_allclose(same.probabilities, run.probabilities, rtol=1e-6, atol=1e-7)


def test_pairs_of_another_graph(tmp_path):
    masks = {f"pair_{name}_mask": np.arange(30) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    ends = np.stack([np.arange(30), np.arange(30)])
    paired = {RELATIONS[0]: {"edge_index": ends, "pairs": ends, **masks}}
    run = trained(tmp_path, graph=graph_of(0, edges=paired), task=Link(embedding=4))
    found = fg.predict(run, graph=graph_of(0, edges=paired, order=-1), out=tmp_path / "same")
    np.testing.assert_array_equal(found.pairs, ends.T)
    np.testing.assert_allclose(found.scores, run.predictions, rtol=1e-6, atol=1e-7)
    with pytest.raises(InputError, match="graph1 has no pairs, and the run scores pairs"):
        fg.predict(run, graph=graph_of(1), out=tmp_path / "none")


def test_from_the_shell(say, tmp_path):
    save_npz(graph_of(0), tmp_path / "one.npz")
    save_npz(graph_of(1, labels=False), tmp_path / "two.npz")
    assert load_typed(tmp_path / "two.npz").target is None
    small = ("--hidden", "8", "--layers", "2", "--epochs", "2", "--parts", "2", "--out", "run")
    assert say("train", "one.npz", *small)[0] == 0
    assert say("predict", "run", "--graph", "two.npz", "--format", "csv", "--out", "there")[0] == 0
    lines = (tmp_path / "there" / "predictions.csv").read_text().splitlines()
    assert len(lines) == 41
    assert lines[1].startswith('"1-0"')


EMPTY = np.empty((2, 0), int)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"without": ["author", *RELATIONS[:2]]}, "graph1 lacks the node type author of the run's graph: give"),
        ({"without": [RELATIONS[2]]}, "graph1 lacks the relation paper__cites__paper of the run's graph"),
        ({"nodes": {"venue": {"num_nodes": 3}}}, "graph1 has the node type venue, which the run's graph"),
        ({"edges": {("paper", "by", "author"): EMPTY}}, "graph1 has the relation paper__by__author, which the run's"),
        ({"nodes": {"author": {"x": np.ones((30, 6))}}}, "graph1: author has 6 features, and the run was trained with"),
        ({"nodes": {"author": {"num_nodes": 30}}}, "graph1: author has 0 features, and the run was trained with"),
        ({"edges": {RELATIONS[0]: {"edge_index": EMPTY, "edge_weight": np.ones(0)}}}, "graph1 has edge weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_graph_that_does_not_fit_is_one_line(tmp_path, changes, text):
    run = trained(tmp_path)
    with pytest.raises(InputError, match=text):
        fg.predict(run, graph=graph_of(1, **changes), out=tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_learned_rows_are_of_one_graph_alone(tmp_path):
    bare = {"nodes": {"author": {"num_nodes": 30}}}
    run = trained(tmp_path, graph=graph_of(0, **bare))
    with pytest.raises(InputError, match="the model has learned rows for author, which had no features"):
        fg.predict(run, graph=graph_of(1, **bare), out=tmp_path / "there")
    with pytest.raises(InputError, match="demo is a homogeneous graph, and the run's is typed"):
        fg.predict(run, graph="demo", out=tmp_path / "there")
    homogeneous = fg.train("demo", epochs=1, report=False, out=tmp_path / "homogeneous")
    with pytest.raises(InputError, match=r"graph0 is a typed graph .*, and here only homogeneous"):
        fg.predict(homogeneous, graph=graph_of(0), out=tmp_path / "there")
    assert not (tmp_path / "there").exists()
