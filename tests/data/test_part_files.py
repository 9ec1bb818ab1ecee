"""Tables as other programs write them: folders of part files, lists of features, texts as labels, no features."""

import numpy as np
import pytest

from fullgraph.data import Graph, load
from fullgraph.data import columns as module
from fullgraph.errors import InputError

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
from pyarrow import csv, parquet  # noqa: E402

N, E, WIDTH = 50, 200, 4
PUT = {"parquet": parquet.write_table, "csv": csv.write_csv}


def arrays():
    rng = np.random.default_rng(5)
    return {
        "edge_index": rng.integers(0, N, (2, E)),
        "x": rng.standard_normal((N, WIDTH)).astype(np.float32),
        "y": rng.integers(0, 3, N),
        "masks": {name: np.arange(N) % 3 == i for i, name in enumerate(("train", "val", "test"))},
        "names": np.array([f"u{i}" for i in range(N)]),
    }


def tables(parts, *, lists=False):
    words = np.array(["train", "valid", "test"])[np.arange(N) % 3]  # as OGB calls it
    nodes = {"id": parts["names"], "label": parts["y"], "split": words}
    if lists:
        nodes["x"] = pa.array(list(parts["x"]), pa.list_(pa.float32()))
    else:
        nodes |= {f"x_{k}": parts["x"][:, k] for k in range(WIDTH)}
    source, target = parts["names"][parts["edge_index"]]
    return pa.table(nodes), pa.table({"source": source, "target": target})


def spread(folder, table, ending, count, name="part-{:05}-0a1b"):
    """Write a table as Spark does: parts, checksums beside them, and a success mark."""
    folder.mkdir(parents=True)
    step = -(-len(table) // count)
    for number in range(count):
        path = folder / f"{name.format(number)}.{ending}"
        PUT[ending](table.slice(number * step, step), str(path))
        (folder / f".{path.name}.crc").write_bytes(b"crc")
    (folder / "_SUCCESS").touch()


def put(table, column, values, kind=None):
    return table.set_column(table.column_names.index(column), column, pa.array(values, kind))


def refused(*words, told):
    with pytest.raises(InputError, match=told) as caught:
        Graph.from_tables(*words)
    assert "\n" not in str(caught.value)


def assert_same(graph, wanted):
    for name in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask", "edge_attr"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(wanted, name), err_msg=name)
    np.testing.assert_array_equal(graph.names.numpy(), wanted.names.numpy())


@pytest.mark.parametrize("ending", PUT)
@pytest.mark.parametrize("folder", ["{}.parquet", "{}.csv", "{}"])
def test_folders_of_parts_are_one_table(tmp_path, ending, folder):
    nodes, edges = tables(arrays())
    spread(tmp_path / "g" / folder.format("nodes"), nodes, ending, 12, name="part.{}")  # 2 comes before 10
    spread(tmp_path / "g" / folder.format("edges"), edges, ending, 3)
    assert_same(load(tmp_path / "g"), Graph(**arrays()))
    named = ",".join(f"{what}={tmp_path / 'g' / folder.format(what)}" for what in ("nodes", "edges"))
    assert_same(load(f"tables:{named}"), Graph(**arrays()))


def test_parts_without_rows(tmp_path):
    nodes, edges = tables(arrays())
    for ending in PUT:
        spread(tmp_path / ending / "nodes", nodes, ending, 4)
        spread(tmp_path / ending / "edges", edges, ending, 4)
        PUT[ending](nodes.slice(0, 0), str(tmp_path / ending / "nodes" / f"part-7.{ending}"))
        if ending == "csv":
            (tmp_path / ending / "edges" / "part-8.csv").touch()  # not even the names of columns
        assert_same(load(tmp_path / ending), Graph(**arrays()))


def test_a_wrong_row_is_named_in_its_own_part(tmp_path):
    nodes, edges = tables(arrays())
    for ending in PUT:
        spread(tmp_path / ending / "nodes", put(nodes, "x_1", [None if i == 23 else 1.5 for i in range(N)]), ending, 5)
        spread(tmp_path / ending / "edges", edges, ending, 2)
        with pytest.raises(InputError, match=rf"part-00002-0a1b\.{ending} row 4 has no x_1"):
            load(tmp_path / ending)
    spread(tmp_path / "bad" / "nodes", nodes, "csv", 5)
    spread(tmp_path / "bad" / "edges", edges, "csv", 2)
    (tmp_path / "bad" / "nodes" / "part-00003-0a1b.csv").write_text(
        "id,label,split,x_0,x_1,x_2,x_3\nz,1,,1,2,three,4\n"
    )
    with pytest.raises(InputError, match=r"part-00003-0a1b\.csv cannot be read .*three"):
        load(tmp_path / "bad")


def test_folders_that_are_no_table_are_refused_by_name(tmp_path):
    nodes, edges = tables(arrays())
    spread(tmp_path / "nodes", nodes, "parquet", 2)
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "nodes", tmp_path / "empty", told="empty holds no part file: add .parquet or .csv")
    spread(tmp_path / "hive", edges, "parquet", 2)
    (tmp_path / "hive" / "year=2024").mkdir()
    refused(
        tmp_path / "nodes", tmp_path / "hive", told="holds the folder year=2024: write the table without partitions"
    )
    spread(tmp_path / "both", edges, "parquet", 2)
    csv.write_csv(edges, str(tmp_path / "both" / "more.csv"))
    refused(tmp_path / "nodes", tmp_path / "both", told="both .parquet and .csv parts: keep one kind")
    spread(tmp_path / "packed", edges, "csv", 2)
    (tmp_path / "packed" / "part-3.csv.gz").touch()
    refused(tmp_path / "nodes", tmp_path / "packed", told="part-3.csv.gz, which is neither .parquet nor .csv: write")
    spread(tmp_path / "unlike", edges, "csv", 2)
    csv.write_csv(edges.rename_columns(["source", "to"]), str(tmp_path / "unlike" / "part-9.csv"))
    refused(tmp_path / "nodes", tmp_path / "unlike", told=r"part-9.csv and part-.* have other columns .*'target'")
    (tmp_path / "lone").mkdir()
    PUT["csv"](nodes, str(tmp_path / "lone" / "nodes.csv"))
    with pytest.raises(InputError, match=r"edges.parquet does not exist: add it, edges.csv, or a folder of part files"):
        load(tmp_path / "lone")


KINDS = [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), WIDTH)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("batch", [7, 1 << 18])
def test_lists_are_many_features(tmp_path, monkeypatch, kind, batch):
    monkeypatch.setattr(module, "BATCH_ROWS", batch)
    parts = arrays()
    nodes, edges = tables(parts, lists=True)
    nodes = put(nodes, "x", parts["x"].tolist(), kind)
    edges = edges.append_column("e", pa.array(np.arange(2.0 * E).reshape(E, 2).tolist()))
    wanted = Graph(**parts, edge_attr=np.arange(2.0 * E).reshape(E, 2))
    assert_same(Graph.from_tables(nodes, edges), wanted)
    spread(tmp_path / "nodes", nodes, "parquet", 3)
    spread(tmp_path / "edges", edges, "parquet", 3)
    assert_same(load(tmp_path), wanted)
    assert load(tmp_path).x.dtype == (np.float64 if "double" in str(kind) else np.float32)


def test_lists_and_numbers_stand_beside_one_another():
    parts = arrays()
    nodes, edges = tables(parts)
    both = nodes.append_column("x_more", pa.array([[1.0 * i, 2.0] for i in range(N)]))
    x = Graph.from_tables(both, edges).x
    np.testing.assert_array_equal(x, np.column_stack([parts["x"], np.arange(N), np.full(N, 2)]))


def test_wrong_lists_are_one_line():
    nodes, edges = tables(arrays(), lists=True)
    rows = nodes["x"].to_pylist()
    for value, told in (
        ([1.0], r"row 10 has a list of 1 numbers as x, and other rows have 4: give all rows the same number"),
        (None, r"row 10 has no x: give it a number"),
        ([1.0, None, 2.0, 3.0], r"row 10 lacks a number within x"),
    ):
        refused(put(nodes, "x", [*rows[:9], value, *rows[10:]], pa.list_(pa.float32())), edges, told=told)
    refused(
        put(nodes, "x", [[] for _ in rows], pa.list_(pa.float32())), edges, told="row 1 has a list of 0 numbers as x"
    )
    refused(put(nodes, "x", [["a"]] * N), edges, told="has x as list<.*string>, where numbers belong")
    vector = [{"type": 1, "values": row} for row in rows]
    refused(put(nodes, "x", vector), edges, told=r"has x as struct<.*a list: vector_to_array")


def test_a_batch_of_other_length_is_refused_too(monkeypatch):
    monkeypatch.setattr(module, "BATCH_ROWS", 10)
    nodes, edges = tables(arrays(), lists=True)
    rows = [[1.0] * (4 if i < 20 else 5) for i in range(N)]
    refused(put(nodes, "x", rows), edges, told=r"row 21 has a list of 5 numbers as x, and other rows have 4")


@pytest.mark.parametrize("ending", PUT)
def test_texts_are_classes(tmp_path, ending):
    parts = arrays()
    texts = np.array(["zebra", "ant, small", "cåt"])[parts["y"]].tolist()
    texts[4] = None
    nodes, edges = tables(parts)
    nodes = put(
        put(nodes, "label", texts), "split", ["" if i == 4 else w for i, w in enumerate(nodes["split"].to_pylist())]
    )
    for name, table in (("nodes", nodes), ("edges", edges)):
        spread(tmp_path / name, table, ending, 2)
    graph = load(tmp_path)
    assert graph.class_names == ("ant, small", "cåt", "zebra")
    assert [graph.class_names[c] if c >= 0 else None for c in graph.y] == texts
    assert graph.num_classes == 3


@pytest.mark.parametrize("ending", PUT)
def test_numbers_of_every_form_are_labels(tmp_path, ending):
    nodes, edges = tables(arrays())
    nodes = put(nodes, "split", ["" if i == 0 else w for i, w in enumerate(nodes["split"].to_pylist())])
    for values, wanted in (
        ([None, *[1.0, 2.0] * 24, 0.0], [-1, *[1, 2] * 24, 0]),  # whole numbers, of which one is missing
        ([str(i % 3) for i in range(N)], [i % 3 for i in range(N)]),
        ([None, *[0.5, 2.0] * 24, 0.0], [np.nan, *[0.5, 2.0] * 24, 0.0]),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, table in (("nodes", put(nodes, "label", values)), ("edges", edges)):
            spread(folder / name, table, ending, 2)
        graph = load(folder)
        np.testing.assert_array_equal(graph.y, wanted)
        assert graph.real == isinstance(wanted[0], float)


def test_lists_of_zeros_and_ones_are_sets_of_classes():
    nodes, edges = tables(arrays())
    many = np.random.default_rng(0).integers(0, 2, (N, 3))
    graph = Graph.from_tables(put(nodes, "label", many.tolist()), edges)
    assert graph.multilabel
    np.testing.assert_array_equal(graph.y, many)


def test_a_table_without_features_gets_a_column_a_node(tmp_path):
    nodes, edges = tables(arrays())
    graph = Graph.from_tables(nodes.select(["id", "label", "split"]), edges)
    np.testing.assert_array_equal(graph.x.toarray(), np.eye(N))
    assert "no features: each of its 50 nodes gets its own column" in graph.notes[0]
