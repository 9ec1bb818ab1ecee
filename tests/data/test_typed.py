"""Typed graphs: the same from arrays, PyG, files and tables; faults are one line that names the type or relation."""

import gzip
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import fullgraph as fg
from fullgraph.data import TypedGraph, load, load_any, load_typed, save_npz
from fullgraph.data.describe import describe_typed
from fullgraph.data.typed import spelled
from fullgraph.errors import InputError

SIZES = {"paper": 12, "author": 7, "field": 5, "nothing": 0}
RELATIONS = {
    ("author", "writes", "paper"): 25,
    ("paper", "cites", "paper"): 30,
    ("paper", "has", "field"): 20,
    ("nothing", "of", "author"): 0,
}


def arrays(seed=0, labels="classes"):
    """Dense, sparse and missing features; directed edges with duplicates, weights, features, and an empty relation."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((12, 3)).astype(np.float32)
    thin = sp.csr_array(rng.standard_normal((7, 9)).astype(np.float32) * (rng.random((7, 9)) < 0.4))
    y = {
        "classes": np.arange(12) % 3,
        "several": (rng.random((12, 4)) < 0.5).astype(np.float32),
        "numbers": rng.standard_normal(12).astype(np.float32),
    }[labels]
    masks = {f"{name}_mask": np.arange(12) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    nodes = {
        "paper": {"x": dense, "y": y, **masks},
        "author": {"x": thin},
        "field": {"num_nodes": 5},
        "nothing": {"num_nodes": 0},
    }
    edges = {}
    for (source, name, target), count in RELATIONS.items():
        ends = np.stack([rng.integers(0, SIZES[end], count) for end in (source, target)])
        edges[source, name, target] = {"edge_index": ends}
    edges["author", "writes", "paper"]["edge_weight"] = rng.random(25).astype(np.float32)
    edges["paper", "cites", "paper"]["edge_attr"] = rng.random((30, 2)).astype(np.float32)
    return nodes, edges


def dense(x):
    return x.toarray() if sp.issparse(x) else np.asarray(x)


def assert_same(a, b, *, values=True):
    """Two graphs hold the same nodes, edges, labels and masks, in the same order."""
    assert list(a.nodes) == list(b.nodes)
    assert list(a.edges) == list(b.edges)
    for kind in a.nodes:
        left, right = a.nodes[kind], b.nodes[kind]
        assert left.num_nodes == right.num_nodes
        assert (left.x is None) == (right.x is None), kind
        if left.x is not None:
            np.testing.assert_array_equal(dense(left.x), dense(right.x))
    for relation in a.edges:
        left, right = a.edges[relation], b.edges[relation]
        for key in ("indptr", "indices", "edge_weight", "edge_attr"):
            np.testing.assert_array_equal(getattr(left, key), getattr(right, key), err_msg=f"{relation} {key}")
    assert a.target == b.target
    if a.labels is not None:
        for key in ("y", "train_mask", "val_mask", "test_mask"):
            np.testing.assert_array_equal(getattr(a.labels, key), getattr(b.labels, key))
        assert a.labels.num_classes == b.labels.num_classes
        assert a.labels.class_names == b.labels.class_names


def matrix(edge_index, shape, weight=None):
    out = np.zeros(shape)
    np.add.at(out, (edge_index[1], edge_index[0]), 1.0 if weight is None else weight)
    return out


def refused(nodes, edges):
    with pytest.raises(InputError) as caught:
        TypedGraph(nodes, edges)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("labels", ["classes", "several", "numbers"])
def test_a_typed_graph_holds_what_it_was_given(labels):
    nodes, edges = arrays(labels=labels)
    graph = TypedGraph(nodes, edges)
    for relation, given in edges.items():
        own, shape = graph.edges[relation], (SIZES[relation[2]], SIZES[relation[0]])
        for key in (None, "edge_weight"):
            weight = None if key is None else given.get(key)
            held = None if weight is None else own.edge_weight
            np.testing.assert_allclose(
                matrix(own.edge_index, shape, held), matrix(given["edge_index"], shape, weight), rtol=1e-6
            )
        rows = np.split(own.indices, own.indptr[1:-1])
        assert all((np.diff(row) >= 0).all() for row in rows)
        if "edge_attr" in given:  # every edge keeps its own features
            for value, source, target in zip(given["edge_attr"], *given["edge_index"], strict=True):
                here = slice(own.indptr[target], own.indptr[target + 1])
                found = (own.indices[here] == source) & (own.edge_attr[here] == value).all(axis=1)
                assert found.sum() == 1
    np.testing.assert_array_equal(graph.labels.y, nodes["paper"]["y"])
    assert (graph.labels.multilabel, graph.labels.real) == (labels == "several", labels == "numbers")
    assert (graph.num_nodes, graph.num_arcs, graph.starts) == (24, 75, (0, 12, 19, 24, 24))
    for text in ("paper 12 (3 features)", "field 5 (no features)", "author__writes__paper 25", "on paper"):
        assert text in repr(graph)
    with pytest.raises(ValueError, match="read-only"):
        graph.nodes["paper"].x[0] = 1


@pytest.mark.parametrize("labels", ["classes", "several", "numbers"])
def test_the_union_has_every_node_and_edge_once(labels):
    nodes, edges = arrays(labels=labels)
    graph = TypedGraph(nodes, edges)
    union, first = graph.union, dict(zip(SIZES, graph.starts, strict=False))
    assert union.types.starts == graph.starts
    wanted = sum(
        matrix(given["edge_index"] + np.array([[first[s]], [first[t]]]), (24, 24)) for (s, _, t), given in edges.items()
    )
    np.testing.assert_array_equal(matrix(union.edge_index, (24, 24)), wanted)
    np.testing.assert_array_equal(union.train_mask[:12], graph.labels.train_mask)
    assert not union.train_mask[12:].any()
    np.testing.assert_array_equal(union.y[:12], graph.labels.y)
    assert (union.multilabel, union.real) == (labels == "several", labels == "numbers")


def test_a_homogeneous_graph_is_a_typed_one_with_one_type_and_one_relation():
    plain = load("demo")
    typed = TypedGraph.of(plain)
    assert_same(load_typed("demo"), typed)
    assert list(typed.nodes) == ["node"]
    assert list(typed.edges) == [("node", "edge", "node")]
    assert typed.nodes["node"].x is plain.x
    np.testing.assert_array_equal(typed.union.indptr, plain.indptr)
    np.testing.assert_array_equal(typed.union.indices, plain.indices)
    np.testing.assert_array_equal(typed.labels.y, plain.y)
    assert typed.union.types.starts == (0, plain.num_nodes)
    assert not plain.types


def test_reverses_are_the_transposes():
    graph = TypedGraph(*arrays())
    both = graph.with_reverses()
    assert len(both.edges) == 2 * len(graph.edges)
    for source, name, target in graph.edges:
        own, turned = both.edges[source, name, target], both.edges[target, f"rev_{name}", source]
        shape = (SIZES[target], SIZES[source])
        np.testing.assert_array_equal(
            matrix(turned.edge_index, shape[::-1], turned.edge_weight), matrix(own.edge_index, shape, own.edge_weight).T
        )
    with pytest.raises(InputError, match="already has the relation paper__rev_writes__author"):
        both.with_reverses()


# PyG


@pytest.mark.parametrize("labels", ["classes", "several", "numbers"])
def test_hetero_data_there_and_back(labels):
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    graph = TypedGraph(*arrays(labels=labels), name="mine")
    data = graph.to_pyg()
    data.validate()
    assert data["field"].num_nodes == 5
    assert_same(TypedGraph.from_pyg(data), graph)


@pytest.mark.filterwarnings("ignore:Sparse")  # of torch, at its first sparse matrix
def test_hetero_data_with_adj_t_column_labels_and_other_fields():
    hetero = pytest.importorskip("torch_geometric.data", reason="PyG is an extra").HeteroData()
    transforms = pytest.importorskip("torch_geometric.transforms")
    hetero["a"].x = torch.rand(5, 2)
    hetero["a"].y = torch.arange(5)[:, None]
    hetero["a"].pos = torch.rand(5, 3)
    hetero["a"].train_mask = torch.tensor([True, False, False, False, False])
    hetero["a"].val_mask = hetero["a"].train_mask.roll(1)
    hetero["a"].test_mask = hetero["a"].train_mask.roll(2)
    hetero["b"].num_nodes = 4
    hetero["b", "to", "a"].edge_index = torch.tensor([[3, 0, 1], [4, 4, 0]])
    graph = TypedGraph.from_pyg(hetero)
    assert graph.labels.y.tolist() == [0, 1, 2, 3, 4]
    assert graph.notes == ("of the PyG data, a.pos is not used",)
    turned = transforms.ToSparseTensor(layout=torch.sparse_csr)(hetero)
    assert_same(TypedGraph.from_pyg(turned), graph)
    with pytest.raises(InputError, match=r"is a typed graph .2 node types and 1 relation., and gcn is for homogeneous"):
        fg.train(hetero, model="gcn")


# Files


@pytest.mark.parametrize("labels", ["classes", "several", "numbers"])
def test_npz_there_and_back(tmp_path, labels):
    graph = TypedGraph(*arrays(labels=labels))
    save_npz(graph, tmp_path / "mine.npz")
    again = load_typed(tmp_path / "mine.npz")
    assert_same(again, graph)
    assert again.name == "mine"
    with pytest.raises(InputError, match=r"4 relations., and here only homogeneous graphs can be used; `fullgraph tr"):
        load(tmp_path / "mine.npz")


def test_npz_of_other_hands(tmp_path):
    """Class names as texts, names of nodes, K splits, an unknown array; x stays in the file."""
    masks = {f"a/{name}_mask": np.eye(3, dtype=bool)[i] for i, name in enumerate(("train", "val", "test"))}
    masks = {name: np.stack([mask, np.roll(mask, 1)], axis=1) for name, mask in masks.items()}
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.savez(
        tmp_path / "g.npz", **{"a/x": x, "a/y": np.array(["up", "down", "up"]), "a/names": np.array(["p", "q", "r"])},
        **masks, **{"b/num_nodes": 2, "b__r__a/edge_index": np.array([[0, 1], [2, 2]]), "a/pos": x},
    )  # fmt: skip
    graph = load_typed(tmp_path / "g.npz")
    assert graph.labels.class_names == ("down", "up")
    assert graph.num_splits == 2
    assert graph.nodes["a"].names.block(0, 3) == ["p", "q", "r"]
    base = graph.nodes["a"].x
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert "a/pos is not used" in graph.notes[0]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_types_and_relations(tmp_path, ending):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    from pyarrow import csv, parquet

    nodes, edges = arrays()
    nodes["author"]["x"] = dense(nodes["author"]["x"])
    names = {kind: [f"{kind}-{i}" for i in np.random.default_rng(1).permutation(size)] for kind, size in SIZES.items()}
    del nodes["nothing"], edges["nothing", "of", "author"]  # a table of nodes has rows
    edges["field", "of", "author"] = {"edge_index": np.zeros((2, 0), int)}
    put = csv.write_csv if ending == "csv" else parquet.write_table
    for kind, given in nodes.items():
        table = {"id": names[kind]}
        if "x" in given:
            table |= {f"x_{i}": column for i, column in enumerate(given["x"].T)}
        if "y" in given:
            words = np.full(12, "", dtype=object)
            for split in ("train", "val", "test"):
                words[given[f"{split}_mask"]] = split
            table |= {"label": given["y"], "split": words.tolist()}
        put(pa.table(table), str(tmp_path / f"{kind}.{ending}"))
    for relation, given in edges.items():
        source, target = given["edge_index"]
        table = {
            "source": [names[relation[0]][i] for i in source],
            "target": [names[relation[2]][i] for i in target],
        }
        if not table["source"]:
            table = {key: pa.array([], pa.string()) for key in table}
        table |= {"weight": given["edge_weight"]} if "edge_weight" in given else {}
        table |= {f"e_{i}": column for i, column in enumerate(given.get("edge_attr", np.empty((0, 0))).T)}
        put(pa.table(table), str(tmp_path / f"{spelled(relation)}.{ending}"))
    graph = load_typed(tmp_path)
    wanted = TypedGraph(dict(sorted(nodes.items())), dict(sorted(edges.items())))
    assert_same(graph, wanted)
    assert graph.nodes["field"].names.block(0, 5) == names["field"]
    put(pa.table({"source": ["author-0"], "target": ["x"]}), str(tmp_path / f"author__knows__person.{ending}"))
    with pytest.raises(InputError, match=f"ends at 'person', for which there is no table of nodes.*person.{ending}"):
        load_typed(tmp_path)


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


def write_mag(folder, *, field="field_of_study", wrong_id=False):
    """Small files in the form of ogbn-mag's archive."""
    rng = np.random.default_rng(2)
    sizes = {"author": 6, "field_of_study": 4, "institution": 3, "paper": 9}
    raw = folder / "raw"
    write_csv(raw / "num-node-dict.csv.gz", [["author", field, "institution", "paper"], sizes.values()])
    triplets = [
        ("author", "affiliated_with", "institution"),
        ("author", "writes", "paper"),
        ("paper", "cites", "paper"),
        ("paper", "has_topic", "field_of_study"),
    ]
    write_csv(raw / "triplet-type-list.csv.gz", triplets)
    edges = {}
    for triplet in triplets:
        edges[triplet] = np.stack([rng.integers(0, sizes[end], 11) for end in (triplet[0], triplet[2])])
        if wrong_id:
            edges[triplet][1, 3] = 99
        write_csv(raw / "relations" / "___".join(triplet) / "edge.csv.gz", edges[triplet].T)
    x, y = rng.standard_normal((9, 2)).astype(np.float32), rng.integers(0, 4, (9, 1))
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", x)
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", y)
    for name, ids in (("train", [0, 3, 6]), ("valid", [1, 4]), ("test", [2, 5, 7, 8])):
        write_csv(folder / "split" / "time" / "paper" / f"{name}.csv.gz", [[i] for i in ids])
    return sizes, edges, x, y


def test_ogbn_mag_from_its_raw_files(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLGRAPH_DATA", str(tmp_path))
    sizes, edges, x, y = write_mag(tmp_path / "ogbn_mag")
    graph = load_typed("ogb:ogbn-mag")
    assert {kind: nodes.num_nodes for kind, nodes in graph.nodes.items()} == sizes
    assert [kind for kind, nodes in graph.nodes.items() if nodes.x is not None] == ["paper"]
    np.testing.assert_allclose(graph.nodes["paper"].x, x)
    for relation, given in edges.items():
        shape = (sizes[relation[2]], sizes[relation[0]])
        np.testing.assert_array_equal(matrix(graph.edges[relation].edge_index, shape), matrix(given, shape))
    assert graph.labels.y.tolist() == y[:, 0].tolist()
    assert np.flatnonzero(graph.labels.val_mask[:, 0]).tolist() == [1, 4]
    assert (graph.target, graph.name) == ("paper", "ogbn-mag")


def test_ogbn_mag_that_is_damaged_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLGRAPH_DATA", str(tmp_path))
    for change, text in (
        (
            {"wrong_id": True},
            "affiliated_with__institution: edge_index holds the target 99, but institution has 3 nodes",
        ),
        ({"field": "field"}, "ends at 'field_of_study', which is not a node type"),
    ):
        write_mag(tmp_path / "ogbn_mag", **change)
        with pytest.raises(InputError, match=text) as caught:
            load_any("ogb:ogbn-mag")
        assert "\n" not in str(caught.value)
    write_mag(tmp_path / "ogbn_mag")
    (tmp_path / "ogbn_mag" / "raw" / "relations" / "paper___cites___paper" / "edge.csv.gz").unlink()
    with pytest.raises(InputError, match=r"edge.csv.gz does not exist"):
        load_any("ogb:ogbn-mag")


# Synthetic


def majority(graph, relations, groups, classes):
    """The most frequent group among the sources of all these relations, by item."""
    counts = sum(
        sp.csr_array((np.ones(e.num_arcs), e.indices, e.indptr), shape=(len(e.indptr) - 1, len(groups[r[0]])))
        @ np.eye(classes)[groups[r[0]]]
        for r, e in ((r, graph.edges[r]) for r in relations)
    )
    return counts.argmax(axis=1)


def test_labels_of_the_generator_need_relations_to_be_told_apart():
    spec = "typed:nodes=6000,types=2,relations=2,edges=60000,classes=5,noise=0,featured=2,seed=4"
    graph = load_typed(spec)
    tells, hides = ("kind1", "tells0", "item"), ("kind1", "hides0", "item")
    assert set(graph.edges) == {tells, hides, ("item", "rev_tells0", "kind1"), ("item", "rev_hides0", "kind1")}
    rows = np.unique(graph.nodes["kind1"].x.round(4), axis=0, return_inverse=True)[1].reshape(-1)
    assert rows.max() == 4  # without noise, a source's features are its group's mean
    y = graph.labels.y
    # The relation that tells determines the groups' numbers in the order of the features.
    table = np.array([np.bincount(y[majority(graph, [tells], {"kind1": rows}, 5) == g], minlength=5) for g in range(5)])
    groups = {"kind1": table.argmax(axis=1)[rows]}
    right = {
        relations: float((majority(graph, relations, groups, 5) == y).mean())
        for relations in ((tells,), (hides,), (tells, hides))
    }
    assert right[tells,] > 0.98
    assert right[hides,] < 0.05
    assert right[tells, hides] < 0.65
    own = graph.nodes["item"].x
    assert max(abs(float(own[y == a].mean() - own[y == b].mean())) for a, b in combinations(range(5), 2)) < 0.05


def test_the_generator_repeats_by_seed_and_takes_any_shape():
    assert_same(load_typed("typed:nodes=300,seed=3"), load_typed("typed:nodes=300,seed=3"))
    graph = load_typed("typed:nodes=300,types=4,ratio=2,relations=3,edges=500,reverse=0,featured=0,classes=3")
    assert [nodes.num_nodes for nodes in graph.nodes.values()] == [300, 600, 1200, 2400]
    assert [edges.num_arcs for edges in graph.edges.values()] == [500] * 3
    assert all(nodes.x is None for nodes in graph.nodes.values())
    alone = load_typed("typed:nodes=300,types=1,relations=2")
    assert list(alone.nodes) == ["item"]
    with pytest.raises(InputError, match=r"typed: does not know 'node' .*nodes"):
        load_typed("typed:node=3")
    with pytest.raises(InputError, match="the smallest type has 2 nodes for 8 classes"):
        load_typed("typed:nodes=10,types=3")


# Faults


def test_faults_are_one_line_each():
    nodes, edges = arrays()
    writes = ("author", "writes", "paper")
    assert "author__knows__person ends at 'person', which is not a node type (types: paper, author" in refused(
        nodes, edges | {("author", "knows", "person"): np.zeros((2, 1), int)}
    )
    two = refused(nodes | {"author": {**nodes["author"], "y": np.zeros(7, int)}}, edges)
    assert "labels or masks are on 2 types, paper (y, train_mask, val_mask, test_mask) and author (y)" in two
    for row, value, end, kind in ((0, 7, "source", "author"), (1, -1, "target", "paper"), (1, 12, "target", "paper")):
        ends = edges[writes]["edge_index"].copy()
        ends[row, 5] = value
        wanted = f"author__writes__paper: edge_index holds the {end} {value}, but {kind} has {SIZES[kind]} nodes"
        assert wanted in refused(nodes, edges | {writes: ends})
    ragged = [[1.0, 2.0], [1.0]] + [[0.0, 1.0]] * 10
    assert "author: a nested list has rows of different lengths" in refused(nodes | {"author": {"x": ragged}}, {})
    assert "author: num_nodes is 8 for 7 rows of x" in refused(
        nodes | {"author": nodes["author"] | {"num_nodes": 8}}, {}
    )
    bad = np.array(nodes["paper"]["x"])
    bad[3, 1] = np.nan
    assert "paper: x holds NaN or infinity (node 3, column 1)" in refused(nodes | {"paper": {"x": bad}}, {})
    assert "author__writes__paper: edge_weight has shape (3,) for 25 edges" in refused(
        nodes, {writes: edges[writes] | {"edge_weight": np.ones(3)}}
    )
    assert "node type 'my type': give a name of letters" in refused({"my type": np.ones((2, 2))}, {})
    assert "node type 'a__b': give a name" in refused({"a__b": np.ones((2, 2))}, {})
    assert "paper has unknown arrays features; known: x" in refused({"paper": {"features": np.ones((2, 2))}}, {})
    assert "lacks edge_index" in refused(nodes, {writes: {"edge_weight": np.ones(3)}})
    assert "paper: train_mask and val_mask overlap (node 0)" in refused(
        nodes | {"paper": nodes["paper"] | {"val_mask": nodes["paper"]["train_mask"]}}, {}
    )
    assert "graph has no nodes" in refused({"paper": {"num_nodes": 0}}, {})


def test_a_type_with_two_widths_in_a_file_is_one_line(tmp_path):
    x = np.ones((3, 2), np.float32)
    parts = {"a/x_data": x[:, 0], "a/x_indices": np.zeros(3, int), "a/x_indptr": np.arange(4), "a/x_shape": [3, 5]}
    np.savez(tmp_path / "two.npz", **{"a/x": x}, **parts)
    with pytest.raises(InputError, match=r"two.npz: a has both x and x_data \(2 and 5 columns\): give a type its feat"):
        load_any(tmp_path / "two.npz")
    np.savez(tmp_path / "two.npz", **{"a/x": x, "a__r__b/edge_index": np.zeros((2, 1), int)})
    with pytest.raises(InputError, match=r"two.npz: a__r__b ends at 'b', which is not a node type"):
        load_any(tmp_path / "two.npz")


def test_types_without_x_or_size_are_as_large_as_their_largest_id():
    graph = TypedGraph({"a": {}, "b": {"num_nodes": 3}}, {("a", "r", "b"): [[0, 6], [1, 2]]})
    assert graph.nodes["a"].num_nodes == 7
    assert graph.labels is None
    assert graph.union.lacks == ("y", "train_mask", "val_mask", "test_mask")


def test_a_typed_graph_without_a_split_can_be_given_one():
    nodes, edges = arrays()
    nodes["paper"] = {key: nodes["paper"][key] for key in ("x", "y")}
    graph = TypedGraph(nodes, edges)
    assert graph.labels.lacks == ("train_mask", "val_mask", "test_mask")
    drawn = graph.with_split("random:50/25/25", 1)
    assert int(drawn.labels.train_mask.sum()) == 6
    assert int(drawn.union.train_mask.sum()) == 6
    with pytest.raises(InputError, match="no labels"):
        TypedGraph({"a": np.ones((4, 1))}, {}).with_split("random:50/25/25", 1)


def test_a_description_counts_by_type_and_relation():
    found = describe_typed(TypedGraph(*arrays()))
    assert [(kind.name, kind.nodes, kind.features, kind.sparse) for kind in found.types] == [
        ("paper", 12, 3, False), ("author", 7, 9, True), ("field", 5, 0, False), ("nothing", 0, 0, False),
    ]  # fmt: skip
    assert [(r.name, r.edges, r.weighted, r.edge_features) for r in found.relations] == [
        ("writes", 25, True, 0), ("cites", 30, False, 2), ("has", 20, False, 0), ("of", 0, False, 0),
    ]  # fmt: skip
    assert (found.target, found.labels, found.classes, found.labelled) == ("paper", "classes", 3, 12)
