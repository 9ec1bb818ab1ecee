"""Fields of a PyG `Data`: each is kept, used, or named in a note."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph.data import Graph, as_graph, load, save_npz
from fullgraph.errors import InputError

Data = pytest.importorskip("torch_geometric.data").Data
import torch_geometric.transforms as T  # noqa: E402
from torch_geometric.utils import to_undirected  # noqa: E402

N, E = 60, 240


def data(**more):
    generator = torch.Generator().manual_seed(0)
    edges = to_undirected(torch.randint(0, N, (2, E), generator=generator))
    edges = edges[:, edges[0] != edges[1]]
    role = torch.arange(N) % 3
    masks = {f"{name}_mask": role == i for i, name in enumerate(("train", "val", "test"))}
    y = torch.randint(0, 3, (N,), generator=generator)
    return Data(x=torch.randn(N, 5, generator=generator), edge_index=edges, y=y, **masks, **more)


def same_arcs(one, other):
    return np.array_equal(one.indptr, other.indptr) and np.array_equal(one.indices, other.indices)


def test_what_is_not_used_is_said():
    assert Graph.from_pyg(data()).notes == ()
    given = data(pe=torch.randn(N + 1, 4), pos=torch.zeros(N - 1, 2), kind="a text")
    (told,) = Graph.from_pyg(given).notes
    assert told.startswith("of the PyG data, pe, pos are not used; a model can take arrays of numbers with a row")
    (told,) = Graph.from_pyg(data(edge_label_index=torch.zeros(2, 3).long(), edge_label=torch.ones(3))).notes
    assert "edge_label_index" in told
    assert "give all three data: Graph.from_pyg((train, val, test))" in told


@pytest.mark.filterwarnings("ignore:Sparse")  # of torch, at its first sparse matrix
def test_adj_t_is_read():
    given, wanted = data(), Graph.from_pyg(data())
    turned = T.ToSparseTensor()(data())
    assert turned.edge_index is None
    graph = Graph.from_pyg(turned)
    assert same_arcs(graph, wanted)
    assert (graph.edge_weight, graph.notes) == (None, ())
    weight = torch.rand(given.edge_index.shape[1])
    weighted = Graph.from_pyg(T.ToSparseTensor(attr="edge_weight")(data(edge_weight=weight)))
    np.testing.assert_array_equal(weighted.edge_weight, Graph.from_pyg(data(edge_weight=weight)).edge_weight)
    # What torch_sparse's class has: coo() gives rows (targets), columns (sources), values.
    source, target = given.edge_index
    own = SimpleNamespace(coo=lambda: (target, source, None))
    assert same_arcs(Graph.from_pyg(SimpleNamespace(adj_t=own, x=given.x)), wanted)
    directed = Data(x=given.x, edge_index=torch.tensor([[0, 1], [5, 6]]))
    assert Graph.from_pyg(T.ToSparseTensor()(directed)).edge_index.tolist() == [[0, 1], [5, 6]]
    with pytest.raises(InputError, match="adj_t is a ndarray: give a sparse matrix"):
        Graph.from_pyg(SimpleNamespace(adj_t=np.eye(3), x=np.eye(3)))


def test_masks_as_lists_of_nodes(tmp_path):
    wanted = Graph.from_pyg(data())
    split = {name: torch.arange(N)[torch.arange(N) % 3 == i] for i, name in enumerate(("train", "valid", "test"))}
    bare = data()
    for name in ("train", "val", "test"):
        del bare[f"{name}_mask"]
    listed = bare.clone()
    for name, ids in split.items():
        listed[f"{name}_idx"] = ids
    np.savez(tmp_path / "g.npz", edge_index=bare.edge_index, x=bare.x, y=bare.y,
             **{f"{name}_idx": ids.numpy() for name, ids in split.items()})  # fmt: skip
    ogb = Graph(bare.edge_index, bare.x, bare.y[:, None], split)  # as PygNodePropPredDataset gives both
    for graph in (Graph.from_pyg(listed), Graph.from_pyg(bare, masks=split), load(str(tmp_path / "g.npz")), ogb):
        for name in ("y", "train_mask", "val_mask", "test_mask"):
            np.testing.assert_array_equal(getattr(graph, name), getattr(wanted, name), err_msg=name)
        assert not graph.notes
    zeros_and_ones = Graph.from_pyg(bare, masks={name: np.isin(np.arange(N), ids) * 1 for name, ids in split.items()})
    np.testing.assert_array_equal(zeros_and_ones.val_mask, wanted.val_mask)
    listed.train_mask = data().train_mask
    with pytest.raises(InputError, match="train_mask and train_idx say the same thing twice"):
        Graph.from_pyg(listed)


def test_a_graph_without_features():
    bare = data(num_nodes=N + 3)
    del bare.x
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        del bare[name]
    graph = Graph.from_pyg(bare)
    np.testing.assert_array_equal(graph.x.toarray(), np.eye(N + 3))
    assert "no features" in graph.notes[0]
    with pytest.raises(InputError, match=r"no features and 200,000 nodes; one-hot columns are made for at most"):
        Graph(np.zeros((2, 1), int), None, num_nodes=200_000)
    with pytest.raises(InputError, match="neither features nor labels nor edges"):
        Graph(np.zeros((2, 0)), None)
    with pytest.raises(InputError, match="num_nodes is float64"):
        Graph(np.zeros((2, 1), int), None, num_nodes=2.5)


def links(seed=0, **how):
    torch.manual_seed(seed)
    return T.RandomLinkSplit(num_val=0.2, num_test=0.2, is_undirected=True, **how)(data())


@pytest.mark.parametrize("how", [{}, {"add_negative_train_samples": False}, {"split_labels": True}], ids=str)
def test_the_three_of_a_link_split_are_its_pairs(tmp_path, how):
    splits = links(**how)
    graph = as_graph(splits)
    train, val, test = splits
    assert same_arcs(graph, Graph(train.edge_index, train.x))
    assert not graph.labelled  # nodes have no split: the task is links
    for number, part in enumerate((train, val, test)):
        ends = graph.pairs.ends[graph.pairs.split == number].T
        y = graph.pairs.y[graph.pairs.split == number]
        if "split_labels" in how:
            np.testing.assert_array_equal(ends[:, y == 1], part.pos_edge_label_index)
            np.testing.assert_array_equal(ends[:, y == 0], part.neg_edge_label_index)
        else:
            np.testing.assert_array_equal(ends, part.edge_label_index)
            np.testing.assert_array_equal(y, part.edge_label)
    (told,) = graph.notes
    assert "the other two PyG data have different edges (" in told
    assert "for test)" in told
    save_npz(graph, tmp_path / "links.npz")
    again = load(str(tmp_path / "links.npz"))
    np.testing.assert_array_equal(again.pairs.ends, graph.pairs.ends)
    np.testing.assert_array_equal(again.pairs.split, graph.pairs.split)


def test_wrong_link_splits_are_one_line():
    train, val, test = links()
    for given, told in (
        ((train, val), "2 PyG data are not a graph: give what RandomLinkSplit returns"),
        ((train, val, data()), "for pair_test_mask lacks edge_label_index"),
        ((train, val, Data(x=torch.zeros(3, 5), edge_label_index=test.edge_label_index)), "have 3, 60 nodes"),
    ):
        with pytest.raises(InputError, match=told):
            as_graph(given)
    test.edge_label = test.edge_label + 1
    with pytest.raises(InputError, match="edge_label has more than 0 and 1"):
        as_graph((train, val, test))


def test_a_run_on_a_link_split_learns_links_and_says_what_it_leaves_out(tmp_path, capfd):
    run = fg.train(links(), epochs=3, eval_every=1, report=False, out=tmp_path / "run")
    assert run.result["task"] == "link"
    assert run.result["model"] == "gcn"
    assert "computed from the training edges" in capfd.readouterr().err


def test_float_classes_are_said_and_can_be_read(tmp_path, capfd):
    given = data()
    given.y = given.y.double()
    given.y[1] = float("nan")
    given.val_mask[1] = False
    short = {"epochs": 2, "eval_every": 1, "report": False}
    assert fg.train(given, **short, out=tmp_path / "auto").result["task"] == "regression"
    told = "y has floats that are all whole numbers, and is learned as real numbers (regression); --task classification"
    assert told in capfd.readouterr().err
    run = fg.train(given, task="classification", **short, out=tmp_path / "classes")
    assert (run.result["metric"], run.result["graph"]["classes"]) == ("accuracy", 3)
    assert told not in capfd.readouterr().err
    assert fg.train(given, task="regression", **short, out=tmp_path / "numbers").result["metric"] == "rmse"
    assert told not in capfd.readouterr().err
    given.y += 0.5
    with pytest.raises(InputError, match="real numbers for labels: use --task regression, or give y as integers"):
        fg.train(given, task="classification", **short, out=tmp_path / "refused")


OWN = """
import torch
from torch_geometric.nn import GCNConv, TransformerConv
class Plain(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels)
    def forward(self, x, edge_index):
        return self.conv(x, edge_index)
class Reads(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = TransformerConv(in_channels, out_channels, edge_dim=2)
    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr)
"""


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("gcn", "--model gcn does not use the edge_attr of the graph's edges; a model of your own may"),
        ("own.py:Plain", "own.py:Plain does not use the edge_attr and edge_weight of the graph's edges; it takes them"),
        ("own.py:Reads", "own.py:Reads does not use the edge_weight of the graph's edges"),
    ],
)
def test_what_arcs_have_and_a_model_does_not_read_is_said(tmp_path, model, told):
    arcs = data().edge_index.shape[1]
    save_npz(Graph.from_pyg(data(edge_attr=torch.rand(arcs, 2), edge_weight=torch.rand(arcs))), tmp_path / "g.npz")
    (tmp_path / "own.py").write_text(OWN)
    words = [sys.executable, "-m", "fullgraph", "train", "g.npz", "--model", model, "--epochs", "1", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert told in done.stderr
    assert ("edge_attr" in done.stderr) == ("Reads" not in model)


def test_pairs_beside_labels_are_said(tmp_path, capfd):
    graph = Graph.from_pyg(data())
    pairs = Graph.from_pyg(links()).pairs
    fg.train(graph.with_pairs(pairs), epochs=1, report=False, out=tmp_path / "run")
    assert "the graph's pairs are not used: its nodes have labels and masks" in capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["task"] == "classification"
