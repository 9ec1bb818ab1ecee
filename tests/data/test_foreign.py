"""Graphs of other projects, read from small files written here in their layouts."""

import gzip
import json
import mmap
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fullgraph.data import Graph, load
from fullgraph.errors import InputError

N, F = 12, 3


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLGRAPH_DATA", str(tmp_path))
    return tmp_path


def parts():
    rng = np.random.default_rng(1)
    edges = rng.integers(0, N, (2, 30))
    return edges, rng.standard_normal((N, F)).astype(np.float32), rng.integers(0, 4, N)


def arcs(graph):
    return sorted(zip(*graph.edge_index.tolist(), strict=True))


def refused(spec):
    with pytest.raises(InputError) as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# OGB


def write_csv(path, array, fmt):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, array, fmt=fmt, delimiter=",")


def write_ogb(folder, split, binary=False):
    edges, x, y = parts()
    if binary:
        (folder / "raw").mkdir(parents=True)
        np.savez(folder / "raw" / "data.npz", edge_index=edges, node_feat=x.astype(np.float16), num_nodes_list=[N])
        labels = y.astype(np.float32)[:, None]
        labels[-1] = np.nan
        np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    else:
        write_csv(folder / "raw" / "edge.csv.gz", edges.T, "%d")
        write_csv(folder / "raw" / "node-feat.csv.gz", x, "%.9g")
        write_csv(folder / "raw" / "node-label.csv.gz", y, "%d")
        write_csv(folder / "raw" / "num-node-list.csv.gz", [N], "%d")
    for stem, ids in (("train", [0, 3]), ("valid", [1]), ("test", [2, 4, 5])):
        write_csv(folder / "split" / split / f"{stem}.csv.gz", ids, "%d")


def test_ogb_arxiv_keeps_its_directed_arcs(root):
    write_ogb(root / "ogbn_arxiv", "time")
    graph = load("ogb:ogbn-arxiv")
    edges, x, y = parts()
    assert arcs(graph) == sorted(zip(*edges.tolist(), strict=True))
    assert np.array_equal(graph.x, x)
    assert np.array_equal(graph.y, y)
    assert np.flatnonzero(graph.train_mask[:, 0]).tolist() == [0, 3]
    assert np.flatnonzero(graph.val_mask[:, 0]).tolist() == [1]
    assert np.flatnonzero(graph.test_mask[:, 0]).tolist() == [2, 4, 5]
    assert graph.name == "ogbn-arxiv"


def test_ogb_products_gets_the_reverse_of_every_edge(root):
    write_ogb(root / "ogbn_products", "sales_ranking")
    graph = load("ogb:ogbn-products")
    edges, _, _ = parts()
    both = np.concatenate([edges, edges[::-1]], axis=1)
    assert arcs(graph) == sorted(zip(*both.tolist(), strict=True))
    assert graph.is_symmetric()


def test_ogb_papers_is_binary_and_its_missing_labels_are_unlabelled(root):
    write_ogb(root / "ogbn_papers100M", "time", binary=True)
    graph = load("ogb:ogbn-papers100M")
    edges, x, y = parts()
    assert arcs(graph) == sorted(zip(*edges.tolist(), strict=True))
    assert graph.x.dtype == np.float16
    assert np.array_equal(graph.x, x.astype(np.float16))
    assert np.array_equal(graph.y[:-1], y[:-1])
    assert graph.y[-1] == -1


def test_ogb_says_where_files_belong_and_what_it_knows(root):
    assert "FULLGRAPH_DATA" in (text := refused("ogb:ogbn-arxiv"))
    assert str(root / "ogbn_arxiv" / "raw") in text
    for name in ("ogbn-proteins", "ogbl-wikikg2", "nonsense", ""):
        assert "ogbn-products" in refused(f"ogb:{name}")
    write_ogb(root / "ogbn_arxiv", "time")
    (root / "ogbn_arxiv" / "split" / "time" / "valid.csv.gz").unlink()
    assert "valid.csv.gz" in refused("ogb:ogbn-arxiv")
    write_csv(root / "ogbn_arxiv" / "split" / "time" / "valid.csv.gz", [N], "%d")
    assert "outside 0 to 11" in refused("ogb:ogbn-arxiv")
    write_csv(root / "ogbn_arxiv" / "raw" / "num-node-list.csv.gz", [], "%d")
    assert "num-node-list.csv.gz" in refused("ogb:ogbn-arxiv")
    write_csv(root / "ogbn_arxiv" / "raw" / "num-node-list.csv.gz", [N], "%d")
    (root / "ogbn_arxiv" / "raw" / "edge.csv.gz").write_bytes(b"no gzip")
    assert "edge.csv.gz" in refused("ogb:ogbn-arxiv")


# GraphSAINT


def write_saint(folder, multilabel=False, weight=1.0):
    edges, x, y = parts()
    adj = sp.csr_matrix((np.full(30, weight), (edges[1], edges[0])), shape=(N, N))
    adj.sum_duplicates()
    if weight == 1.0:
        adj.data[:] = 1
    folder.mkdir()
    sp.save_npz(folder / "adj_full.npz", adj)
    np.save(folder / "feats.npy", x.astype(np.float64))
    classes = np.eye(4, dtype=int)[y].tolist() if multilabel else y.tolist()
    (folder / "class_map.json").write_text(json.dumps({str(i): c for i, c in enumerate(classes)}))
    (folder / "role.json").write_text(json.dumps({"tr": [0, 5], "va": [1, 2], "te": [7]}))
    return adj, x, y


@pytest.mark.parametrize("multilabel", [False, True])
def test_saint_folder(root, multilabel):
    adj, x, y = write_saint(root / "flickr", multilabel)
    graph = load(f"saint:{root / 'flickr'}")
    assert arcs(graph) == sorted(zip(adj.tocoo().col.tolist(), adj.tocoo().row.tolist(), strict=True))
    assert np.array_equal(graph.x, x.astype(np.float64))
    owner = graph.x
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, mmap.mmap)
    assert graph.multilabel == multilabel
    assert np.array_equal(graph.y.argmax(1) if multilabel else graph.y, y)
    assert not graph.weighted
    assert np.flatnonzero(graph.val_mask[:, 0]).tolist() == [1, 2]
    assert graph.name == "flickr"


def test_saint_values_become_weights_when_they_differ_from_one(root):
    adj, _, _ = write_saint(root / "weighted", weight=0.5)
    graph = load(f"saint:{root / 'weighted'}")
    dense = np.zeros((N, N))
    np.add.at(dense, (graph.edge_index[1], graph.edge_index[0]), graph.edge_weight)
    assert np.array_equal(dense, adj.toarray())


def test_saint_mistakes(root):
    assert "adj_full.npz" in refused("saint:nowhere")
    write_saint(folder := root / "yelp")
    assert f"saint:{folder}" in refused(str(folder))
    for name, content, said in (
        ("role.json", '{"tr": [0], "va": [1]}', "'te'"),
        ("role.json", '{"tr": [0], "va": [1], "te": [12]}', "outside"),
        ("role.json", "[]", "JSON object"),
        ("role.json", '{"tr": ["a"], "va": [1], "te": [2]}', "whole numbers"),
        ("role.json", '{"tr": [], "va": [1], "te": [2]}', "train_mask is empty"),
        ("class_map.json", '{"0": 1}', "node '1'"),
        ("class_map.json", "{", "is not JSON"),
        ("feats.npy", "text", "numpy.save"),
        ("adj_full.npz", "text", "not an .npz"),
    ):
        before = (folder / name).read_bytes()
        (folder / name).write_text(content)
        assert said in refused(f"saint:{folder}")
        (folder / name).unlink()
        if name.endswith(".json"):  # to train on it alone
            assert load(f"saint:{folder}").lacks
        else:
            assert name in refused(f"saint:{folder}")
        (folder / name).write_bytes(before)
    sp.save_npz(folder / "adj_full.npz", sp.csc_matrix((N, N)))
    assert "CSR" in refused(f"saint:{folder}")
    np.save(folder / "feats.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "numpy.save" in refused(f"saint:{folder}")


# PyG


def pyg_data(masks=True):
    from torch_geometric.data import Data

    edges, x, y = parts()
    data = Data(edge_index=torch.tensor(edges), x=torch.tensor(x), y=torch.tensor(y))
    if masks:
        role = torch.arange(N) % 3
        data.train_mask, data.val_mask, data.test_mask = role == 0, role == 1, role == 2
    return data


def test_pyg_data_round_trip():
    data = pyg_data()
    data.edge_weight = torch.rand(30)
    graph = Graph.from_pyg(data, name="mine")
    order = np.lexsort((data.edge_index[0], data.edge_index[1]))
    assert np.array_equal(graph.edge_index, data.edge_index.numpy()[:, order])
    assert np.array_equal(graph.edge_weight, data.edge_weight.numpy()[order])
    assert np.array_equal(graph.x, data.x)
    assert np.array_equal(graph.y, data.y)
    assert np.array_equal(graph.test_mask[:, 0], data.test_mask)
    assert graph.name == "mine"
    data.y = data.y[:, None]
    assert not Graph.from_pyg(data).multilabel


def test_pyg_data_without_parts_names_them():
    from torch_geometric.data import Data

    assert Graph.from_pyg(pyg_data(masks=False)).lacks == ("train_mask", "val_mask", "test_mask")
    with pytest.raises(InputError, match="lacks edge_index: give"):
        Graph.from_pyg(Data(x=torch.zeros(2, 1)))


def serve(monkeypatch, make):
    import torch_geometric.datasets

    seen = {}

    def dataset(root, **options):
        seen.update(root=root, **options)
        return make()

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", dataset)
    return seen


def test_pyg_dataset_by_name(root, monkeypatch):
    seen = serve(monkeypatch, lambda: [pyg_data()])
    graph = load("pyg:Planetoid/Cora")
    assert seen == {"root": str(root / "pyg" / "Planetoid"), "name": "Cora"}
    assert graph.name == "cora"
    assert graph.num_nodes == N


def test_pyg_dataset_without_masks_gets_a_split_of_its_labelled_nodes(monkeypatch):
    data = pyg_data(masks=False)
    data.y[:2] = -1
    serve(monkeypatch, lambda: [data])
    graph = load("pyg:Planetoid")
    used = graph.train_mask | graph.val_mask | graph.test_mask
    assert np.array_equal(used[:, 0], graph.y >= 0)
    assert [int(m.sum()) for m in (graph.train_mask, graph.val_mask, graph.test_mask)] == [6, 2, 2]


def test_pyg_failures_are_one_line(monkeypatch):
    def offline():
        raise URLError("no route\nto host")

    serve(monkeypatch, offline)
    assert "check the name and the network" in refused("pyg:Planetoid/Cora")
    serve(monkeypatch, lambda: [pyg_data(), pyg_data()])
    assert "2 graphs" in refused("pyg:Planetoid/Cora")
    assert "pyg:CLASS/NAME" in refused("pyg:NoSuchClass/Cora")
    assert "pyg:CLASS/NAME" in refused("pyg:")
