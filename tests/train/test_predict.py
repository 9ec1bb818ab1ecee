"""A finished run's model on other graphs: equal to one process, with the user's ids, or refused in one line."""

import csv
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph.data import FeatureScaler, fit_features
from fullgraph.partition import GraphFacts
from fullgraph.predicting import check_fits
from tests.support import random_graph

NET = """
import torch
from torch_geometric.nn import GINEConv, SAGEConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.one = SAGEConv(in_channels, 6)
        self.two = GINEConv(torch.nn.Linear(6, out_channels), edge_dim=2)

    def forward(self, x, edge_index, edge_attr):
        return self.two(self.one(x, edge_index).relu(), edge_index, edge_attr)
"""


def named(graph, seed=0):
    """The same graph with texts as names, and features of arcs."""
    names = [f"id-{i}" for i in np.random.default_rng(seed).permutation(graph.num_nodes)]
    attr = np.random.default_rng(seed).random((graph.num_arcs, 2))
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return fg.Graph(graph.edge_index, graph.x, graph.y, masks, edge_attr=attr, names=names, name="named")


def bare(graph):
    """The same graph without labels and masks."""
    return fg.Graph(graph.edge_index, graph.x, edge_attr=graph.edge_attr, names=graph.names, name="bare")


def command(*words, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "fullgraph", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=110
    )
    return done.returncode, done.stdout, done.stderr.strip()


@pytest.fixture(scope="module")
def graph():
    return named(random_graph(nodes=120, arcs=500))


@pytest.fixture(scope="module")
def run(graph, tmp_path_factory):
    """One of our models: standardised features, a strategy with state between steps, live rows, two ranks."""
    options = {"features": "standard", "strategy": "gnnpipe", "dtype": "float64"}
    model = fg.nn.GraphSAGE(layers=2, hidden=8, norm="layer")
    return fg.train(graph, model=model, parts=2, epochs=4, out=tmp_path_factory.mktemp("a") / "run", **options)


@pytest.fixture(scope="module")
def own_run(graph, tmp_path_factory):
    """A user's module, with features of arcs."""
    pytest.importorskip("torch_geometric")
    folder = tmp_path_factory.mktemp("b")
    (folder / "net.py").write_text(NET)
    options = {"features": "row", "dtype": "float64", "epochs": 3, "parts": 2}
    return fg.train(graph, model=f"{folder / 'net.py'}:Net", out=folder / "run", **options)


def test_its_own_graph_without_labels_gives_what_training_gave(run, graph):
    for parts in (1, 3):
        got = run.predict(bare(graph), parts=parts)
        assert got.folder == run.folder / "predictions" / "bare"
        np.testing.assert_allclose(got.probabilities, run.probabilities, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(got.classes, run.predictions)
        np.testing.assert_array_equal(got.ids, graph.names.numpy())
        assert sorted(path.name for path in got.folder.iterdir()) == [
            ".fullgraph.lock",
            "classes.npy",
            "ids.npy",
            "probabilities.npy",
        ]
    np.testing.assert_array_equal(np.load(run.folder / "predictions" / "ids.npy"), graph.names.numpy())


def test_embeddings_of_one_of_ours_are_its_layers_rows(run, graph):
    got = fg.predict(run.folder, embeddings=1, out=run.folder.parent / "layer")
    scaled = fit_features(graph, "standard").apply(graph.x)
    shard = fg.open_shard(
        fg.Graph(graph.edge_index, scaled, graph.y, (graph.train_mask, graph.val_mask, graph.test_mask)),
        model=fg.nn.GraphSAGE(), dtype=torch.float64,
    )  # fmt: skip
    seen = []
    run.model.blocks[0].register_forward_hook(lambda part, args, out: seen.append(out[0]))
    with torch.no_grad():
        run.model(shard.full.x, shard.full.view)
    assert got.embeddings.dtype == np.float64
    wanted = np.empty_like(got.embeddings)
    wanted[shard.full.ids] = seen[0]
    np.testing.assert_allclose(got.embeddings, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got.probabilities, run.probabilities, rtol=1e-6)


def test_many_labels_weights_and_sparse_features(tmp_path):
    graph = random_graph(nodes=100, arcs=400, directed=True, weighted=True, sparse=True, multilabel=True)
    options = {"features": "standard", "inductive": True, "dtype": "float64", "metric": "micro_f1"}
    run = fg.train(graph, model="gcn", parts=1, epochs=2, out=tmp_path / "run", **options)
    plain = fg.Graph(graph.edge_index, graph.x, edge_weight=graph.edge_weight)
    got = fg.predict(run, graph=plain, parts=2, out=tmp_path / "out")
    np.testing.assert_allclose(got.probabilities, run.probabilities, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(got.classes, run.predictions)
    assert got.classes.shape == graph.y.shape
    np.testing.assert_array_equal(got.ids, np.arange(100))
    (run.folder / "model.safetensors").unlink()
    with pytest.raises(fg.InputError, match="let the run finish first"):
        fg.predict(run, graph=plain)


def test_a_model_of_the_users_on_other_nodes(own_run, tmp_path):
    other = named(random_graph(nodes=90, arcs=300, seed=5), seed=5)
    got = own_run.predict(bare(other), parts=3, embeddings="one", out=tmp_path)
    scaled = torch.from_numpy(FeatureScaler("row").apply(other.x))
    data = other.to_pyg()
    seen = []
    own_run.model.one.register_forward_hook(lambda part, args, out: seen.append(out))
    with torch.no_grad():
        wanted = own_run.model(scaled, data.edge_index, data.edge_attr).softmax(1)
    np.testing.assert_allclose(got.probabilities, wanted.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got.embeddings, seen[0].numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_tables_from_the_shell_under_the_users_ids(own_run, graph, tmp_path, format):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    fg.save_npz(bare(graph), tmp_path / "new.npz")
    out = tmp_path / "out"
    words = ["--graph", tmp_path / "new.npz", "--embeddings", "2", "--format", format, "--out", out]
    code, said, told = command("predict", own_run.folder, *words, cwd=tmp_path)
    assert (code, told) == (0, "")
    assert said.splitlines()[-1] == f"wrote {out}/predictions.{format}, {out}/embeddings.{format}"
    tables = {}
    for name in ("predictions", "embeddings"):
        if format == "csv":
            with (out / f"{name}.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            tables[name] = {column: np.array([row[column] for row in rows]) for column in rows[0]}
        else:
            tables[name] = {
                column: np.asarray(values)
                for column, values in pyarrow.parquet.read_table(out / f"{name}.parquet").to_pydict().items()
            }
    assert sorted(path.name for path in out.iterdir()) == [
        ".fullgraph.lock", f"embeddings.{format}", f"predictions.{format}"
    ]  # fmt: skip
    classes = own_run.probabilities.shape[1]
    assert list(tables["predictions"]) == ["id", "class", *(f"p_{c}" for c in range(classes))]
    assert list(tables["embeddings"]) == ["id", *(f"x_{c}" for c in range(classes))]
    for table in tables.values():
        np.testing.assert_array_equal(table["id"], graph.names.numpy())
    np.testing.assert_array_equal(tables["predictions"]["class"].astype(int), own_run.predictions)
    for c in range(classes):
        p = tables["predictions"][f"p_{c}"].astype(np.float64)
        np.testing.assert_allclose(p, own_run.probabilities[:, c], rtol=1e-5, atol=1e-7)


def test_what_does_not_fit_leaves_nothing_behind(run, own_run, graph, tmp_path):
    out = tmp_path / "deep" / "out"
    for who, options, text in (
        (run, {"embeddings": 7}, r"no layer '7'; it has 1, 2, convs"),
        (run, {"parts": 3}, "own graph has 2 parts; leave --parts out"),
        (run, {"format": "xml"}, "format 'xml' is unknown: choose from npy, csv, parquet"),
        (run, {"graph": 3}, "a int is not a graph; give"),
        (run, {"graph": "nowhere.npz"}, "does not exist"),
        (run, {"graph": run.folder / "shards"}, "give the graph that it was cut from"),
        (run, {"graph": random_graph(features=5)}, "has 5 features per node, and the run was trained with 12"),
    ):
        with pytest.raises(fg.InputError, match=text):
            fg.predict(who, out, **options)
        assert not out.parent.exists()


def facts(graph, **changes):
    own = GraphFacts(
        name="g", nodes=9, arcs=9, features=graph.num_features, classes=4, multilabel=False, weighted=False, splits=1,
        sparse=False,
    )  # fmt: skip
    return replace(own, **changes)


def test_graphs_of_another_form_are_refused():
    plain, sparse, weighted = random_graph(), random_graph(sparse=True), random_graph(weighted=True)
    none, centred = FeatureScaler("none"), fit_features(plain, "standard")
    check_fits(plain, facts(plain), centred)
    check_fits(sparse, facts(plain), none)
    check_fits(sparse, facts(plain), fit_features(sparse, "standard"))
    for graph, wanted, scaler, text in (
        (plain, facts(plain, edge_features=2), none, "no features per edge, and the run was trained with 2"),
        (named(plain), facts(plain), none, "2 features per edge, and the run was trained with none"),
        (plain, facts(plain, weighted=True), none, "no edge weights, and the run was trained with them"),
        (weighted, facts(plain), none, "has edge weights, and the run was trained without"),
        (sparse, facts(plain), centred, "sparse features, and the run scaled dense ones"),
    ):
        with pytest.raises(fg.InputError, match=text):
            check_fits(graph, wanted, scaler)


def test_a_graph_without_labels_is_no_graph_to_train_on(tmp_path):
    fg.save_npz(bare(named(random_graph())), tmp_path / "bare.npz")
    for words in (["train", "bare.npz", "--out", "run"], ["partition", "bare.npz", "--out", "run"]):
        code, _, told = command(*words, cwd=tmp_path)
        assert code == 2
        assert told.startswith("fullgraph: error: bare lacks y, train_mask, val_mask, test_mask: training needs labels")
        assert "\n" not in told
        assert [path.name for path in tmp_path.iterdir()] == ["bare.npz"]
    with pytest.raises(fg.InputError, match="bare lacks y"):
        fg.open_shard(fg.load(tmp_path / "bare.npz"))


def test_many_nodes_may_be_unlabelled(tmp_path):
    graph = random_graph(nodes=200, arcs=800)
    train, val, test = (
        mask[:, 0] & (np.arange(200) % 5 == 0) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)
    )
    y = np.where(train | val | test, graph.y, -1)
    sparse_labels = fg.Graph(graph.edge_index, graph.x, y, (train, val, test))
    run = fg.train(sparse_labels, parts=2, epochs=2, out=tmp_path / "run")
    assert len(run.predictions) == 200
    assert run.result["test"] == pytest.approx((run.predictions == y)[test].mean())
