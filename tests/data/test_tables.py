"""Graphs from tables of nodes and edges: equal to their arrays, or refused in one line."""

import sys

import numpy as np
import pytest

from fullgraph.data import Graph, load
from fullgraph.data import columns as module
from fullgraph.errors import InputError

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
from pyarrow import csv, parquet  # noqa: E402

N, E = 40, 170
ENDINGS = ("parquet", "csv")


def arrays(texts=True):
    """A graph as arrays; nodes are named by texts or by large numbers, in no order."""
    rng = np.random.default_rng(3)
    numbers = rng.permutation(N)
    return {
        "edge_index": rng.integers(0, N, (2, E)),
        "x": rng.standard_normal((N, 3)).astype(np.float32),
        "y": rng.integers(0, 4, N) - (np.arange(N) == N - 1),
        "masks": {
            name: (np.arange(N) % 4 == i) & (np.arange(N) < N - 1) for i, name in enumerate(("train", "val", "test"))
        },
        "edge_weight": rng.random(E).astype(np.float32),
        "edge_attr": rng.random((E, 2)).astype(np.float32),
        "names": np.array([f"nöde {i}" for i in numbers]) if texts else numbers * 10**12 - 5,
    }


def tables(parts):
    """The same as pyarrow tables."""
    names, words = parts["names"], np.full(N, "", dtype=object)
    for split, mask in parts["masks"].items():
        words[mask] = split
    nodes = {
        "x_0": parts["x"][:, 0],
        "id": names,
        "label": parts["y"],
        "x_1": parts["x"][:, 1],
        "x_2": parts["x"][:, 2],
    }
    source, target = names[parts["edge_index"]]
    edges = {"target": target, "source": source, "weight": parts["edge_weight"]}
    edges |= {f"e_{k}": parts["edge_attr"][:, k] for k in range(2)}
    return pa.table(nodes | {"split": words.tolist()}), pa.table(edges)


def write(folder, nodes, edges, ending="csv"):
    folder.mkdir(exist_ok=True)
    for name, table in (("nodes", nodes), ("edges", edges)):
        put = csv.write_csv if ending == "csv" else parquet.write_table
        put(table, str(folder / f"{name}.{ending}"))
    return folder


def assert_same(graph, wanted):
    for name in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask", "edge_weight", "edge_attr"):
        left, right = getattr(graph, name), getattr(wanted, name)
        np.testing.assert_array_equal(left, right, err_msg=name)
        assert (left is None and right is None) or left.dtype == right.dtype, name
    assert graph.lacks == wanted.lacks


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("batch", [7, 1 << 18])
def test_a_folder_of_tables_is_the_graph_of_its_arrays(tmp_path, monkeypatch, ending, texts, batch):
    monkeypatch.setattr(module, "BATCH_ROWS", batch)
    monkeypatch.setattr(module, "CSV_BLOCK", max(300, batch))
    parts = arrays(texts)
    graph = load(write(tmp_path / "mine", *tables(parts), ending))
    assert_same(graph, Graph(**parts))
    assert graph.name == "mine"
    wanted = parts["names"].astype(str) if ending == "csv" else parts["names"]  # ids in a CSV file are texts
    np.testing.assert_array_equal(graph.names.numpy(), wanted)


def test_columns_of_other_names(tmp_path):
    parts = arrays()
    nodes, edges = tables(parts)
    nodes = nodes.rename_columns(
        {"id": "user", "label": "group", "split": "fold", "x_0": "f0", "x_1": "f1", "x_2": "f2"}
    )
    edges = edges.rename_columns({"source": "from", "target": "to", "weight": "w", "e_0": "a", "e_1": "b"})
    write(tmp_path, nodes, edges)
    said = "id=user,label=group,split=fold,source=from,target=to,weight=w"
    graph = load(f"tables:nodes={tmp_path}/nodes.csv,edges={tmp_path}/edges.csv,{said}")
    assert_same(graph, Graph(**parts))
    again = Graph.from_tables(
        nodes, edges, id="user", label="group", split="fold", source="from", target="to", weight="w", features="f"
    )
    assert_same(again, Graph(**parts))


def test_edges_may_stand_for_both_directions(tmp_path):
    parts = arrays()
    nodes, edges = tables(parts)
    graph = Graph.from_tables(nodes, edges.select(["source", "target"]), undirected=True)
    both = np.concatenate([parts["edge_index"], parts["edge_index"][::-1]], axis=1)
    assert_same(graph, Graph(both, *(parts[name] for name in ("x", "y", "masks"))))


def test_masks_and_many_labels_as_columns(tmp_path):
    parts = arrays()
    nodes, edges = tables(parts)
    nodes = nodes.drop_columns(["split", "label"])
    for name, mask in parts["masks"].items():
        nodes = nodes.append_column(f"{name}_mask", pa.array(mask))
    many = np.random.default_rng(0).integers(0, 2, (N, 3)).astype(np.float32)
    for c in range(3):
        nodes = nodes.append_column(f"label_{c}", pa.array(many[:, c]))
    for ending in ENDINGS:
        graph = load(write(tmp_path / ending, nodes, edges, ending))
        assert_same(graph, Graph(**{**parts, "y": many}))


def test_without_labels_it_is_a_graph_to_predict_on(tmp_path):
    nodes, edges = tables(arrays())
    graph = load(write(tmp_path, nodes.drop_columns(["label", "split"]), edges))
    assert graph.lacks == ("y", "train_mask", "val_mask", "test_mask")


def test_digits_are_kept_where_a_table_has_them():
    nodes, edges = tables(arrays())
    fine = np.random.default_rng(0).random(N)
    graph = Graph.from_tables(nodes.set_column(nodes.column_names.index("x_1"), "x_1", pa.array(fine)), edges)
    assert graph.x.dtype == np.float64
    np.testing.assert_array_equal(graph.x[:, 1], fine)


def test_ids_of_a_dictionary_column():
    nodes, edges = tables(arrays())
    coded = nodes.set_column(nodes.column_names.index("id"), "id", nodes["id"].dictionary_encode())
    assert_same(Graph.from_tables(coded, edges), Graph(**arrays()))


def put(table, column, row, value):
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(column), column, pa.array(values))


def as_texts(table, changed):
    """The same table with its labels as texts, some of them changed."""
    values = [changed.get(row, str(value)) for row, value in enumerate(table["label"].to_pylist())]
    return table.set_column(table.column_names.index("label"), "label", pa.array(values))


WRONG = {
    "an unknown id": (lambda n, e: (n, put(e, "target", 9, "zed")), "row 10 has the target 'zed', which is not an id"),
    "a doubled id": (lambda n, e: (put(n, "id", 3, n["id"][0].as_py()), e), "more than once: keep one row per node"),
    "no id column": (lambda n, e: (n.drop_columns("id"), e), "no column 'id', the name of each node; it has x_0"),
    "no source": (lambda n, e: (n, e.drop_columns("source")), "no column 'source'"),
    "labels of two kinds": (lambda n, e: (as_texts(n, {3: "cat"}), e), "row 4 has label .cat., and other rows have"),
    "texts as features": (lambda n, e: (put(n.set_column(0, "x_0", n["id"]), "x_0", 2, "?"), e), "x_0|conversion"),
    "a feature that is missing": (lambda n, e: (put(n, "x_1", 4, None), e), "row 5 has no x_1: give it a number"),
    "a weight that is missing": (lambda n, e: (n, put(e, "weight", 6, None)), "row 7 has no weight"),
    "an unknown split": (lambda n, e: (put(n, "split", 2, "dev"), e), "row 3 has split 'dev': write train, val, test"),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_one_line(tmp_path, ending, name):
    change, text = WRONG[name]
    with pytest.raises(InputError, match=text) as caught:
        load(write(tmp_path, *change(*tables(arrays())), ending))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_other_wrong_tables(tmp_path):
    nodes, edges = tables(arrays())
    with pytest.raises(InputError, match="row 8 has no id: give every node an id"):
        Graph.from_tables(put(nodes, "id", 7, None), edges)
    with pytest.raises(InputError, match="row 3 has no source"):
        Graph.from_tables(nodes, put(edges, "source", 2, None))
    with pytest.raises(InputError, match="source as int64, and the nodes' ids are large_string"):
        Graph.from_tables(nodes, edges.set_column(1, "source", pa.array(np.arange(E))))
    with pytest.raises(InputError, match="'x_0' twice"):
        Graph.from_tables(nodes.append_column("x_0", nodes["x_0"]), edges)
    with pytest.raises(InputError, match="has unknown keys ids"):
        Graph.from_tables(nodes, edges, ids="id")
    with pytest.raises(InputError, match="is a dict: give the path"):
        Graph.from_tables({}, edges)
    for text, told in (("nodes=a.csv", "needs both files"), ("nodes=a.txt,edges=b.csv", "does not exist"),
                       ("node=a.csv", "does not know 'node'")):  # fmt: skip
        with pytest.raises(InputError, match=told):
            load(f"tables:{text}")
    write(tmp_path / "both", nodes, edges, "csv")
    write(tmp_path / "both", nodes, edges, "parquet")
    with pytest.raises(InputError, match=r"nodes\.parquet and nodes\.csv: keep one"):
        load(tmp_path / "both")
    (tmp_path / "nodes.csv").write_text("")
    (tmp_path / "edges.csv").write_text("source,target\n")
    with pytest.raises(InputError, match="is empty: give a first line"):
        load(tmp_path)
    (tmp_path / "nodes.csv").write_text("id,x_0\n")
    with pytest.raises(InputError, match="has no row"):
        load(tmp_path)
    (tmp_path / "nodes.csv").write_text("id,x_0\na,1\nb,2,3\n")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "nodes.csv").rename(tmp_path / "nodes.parquet")
    with pytest.raises(InputError, match="write it again as Parquet"):
        load(tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    write(tmp_path, *tables(arrays()))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'fullgraph\[tables\]'"):
        load(tmp_path)
