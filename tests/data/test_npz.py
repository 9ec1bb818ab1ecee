"""The project's .npz: written data is read back, and nothing else is trusted."""

import dataclasses
import os
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fullgraph.data import Graph, Names, load, save_npz
from fullgraph.errors import InputError
from tests.support import same_fields

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def graph_of(sparse=False, multilabel=False, splits=1, weighted=False, name="kept"):
    rng = np.random.default_rng(0)
    num_nodes = 30
    role = np.stack([rng.permutation(num_nodes) % 3 for _ in range(splits)], axis=1)
    x = np.where(rng.random((num_nodes, 6)) < 0.3, rng.standard_normal((num_nodes, 6)), 0).astype(np.float32)
    y = rng.integers(0, 5, num_nodes)
    return Graph(
        rng.integers(0, num_nodes, (2, 100)),
        sp.csr_array(x) if sparse else x,
        np.eye(5)[y] if multilabel else y,
        (role == 0, role == 1, role == 2),
        edge_weight=rng.random(100) if weighted else None,
        name=name,
    )


def assert_same(a, b):
    for field in dataclasses.fields(Graph):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "fields":
            assert same_fields(left, right)
        elif sp.issparse(left):
            assert np.array_equal(left.toarray(), right.toarray())
        elif field.name == "fields":
            assert not left
            assert not right
        else:
            assert np.array_equal(left, right), field.name
            assert getattr(left, "dtype", None) == getattr(right, "dtype", None), field.name


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize(("splits", "weighted"), [(1, False), (3, True)])
def test_round_trip(tmp_path, sparse, multilabel, splits, weighted):
    graph = graph_of(sparse, multilabel, splits, weighted)
    save_npz(graph, tmp_path / "kept.npz")
    assert_same(graph, load(str(tmp_path / "kept.npz")))
    assert os.listdir(tmp_path) == ["kept.npz"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    graph = graph_of()
    save_npz(graph, tmp_path / "kept.npz")
    before = (tmp_path / "kept.npz").read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(InputError, match="disk is full"):
        save_npz(graph, tmp_path / "kept.npz")
    assert os.listdir(tmp_path) == ["kept.npz"]
    assert (tmp_path / "kept.npz").read_bytes() == before
    with pytest.raises(InputError, match="choose a folder"):
        save_npz(graph, tmp_path / "nowhere" / "kept.npz")


def arrays_of(path):
    with np.load(path) as archive:
        return dict(archive)


@pytest.fixture
def saved(tmp_path):
    save_npz(graph_of(sparse=True), tmp_path / "good.npz")
    return tmp_path, arrays_of(tmp_path / "good.npz")


def refused(path):
    with pytest.raises(InputError) as caught:
        load(str(path))
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


@pytest.mark.parametrize("key", ["edge_index", "x_data", "x_shape"])
def test_a_missing_key_is_named(saved, key):
    folder, arrays = saved
    del arrays[key]
    np.savez(folder / "bad.npz", **arrays)
    assert key in refused(folder / "bad.npz")


@pytest.mark.parametrize("key", ["y", "train_mask", "val_mask", "test_mask"])
def test_without_labels_or_a_mask_it_is_a_graph_to_predict_on(saved, key):
    folder, arrays = saved
    del arrays[key]
    np.savez(folder / "bare.npz", **arrays)
    graph = load(str(folder / "bare.npz"))
    assert graph.lacks == (key,)
    assert not graph.train_mask.any()
    with pytest.raises(InputError, match=rf"^bare lacks {key}: training needs labels and three masks.*; only.*predict"):
        graph.need_labels()
    save_npz(graph, folder / "again.npz")
    again = load(str(folder / "again.npz"))
    assert set(again.lacks) >= {key}
    np.testing.assert_array_equal(again.y, graph.y)


def test_masks_that_mark_no_node_are_no_masks(saved):
    folder, arrays = saved
    arrays |= {name: np.zeros_like(arrays[name]) for name in ("train_mask", "val_mask", "test_mask")}
    arrays["y"] = np.full_like(arrays["y"], -1)
    np.savez(folder / "bare.npz", **arrays)
    assert load(str(folder / "bare.npz")).lacks == ("a node in its masks",)


@pytest.mark.parametrize("names", [np.arange(9)[::-1] * 7 - 3, np.array([f"né {i}" * i for i in range(9)])])
def test_names_of_nodes_are_kept(tmp_path, names):
    rng = np.random.default_rng(0)
    graph = Graph(rng.integers(0, 9, (2, 20)), rng.random((9, 2)), names=names)
    save_npz(graph, tmp_path / "named.npz")
    again = load(str(tmp_path / "named.npz"))
    np.testing.assert_array_equal(again.names.numpy(), names)
    assert again.names.block(3, 6) == names[3:6].tolist()
    keep = np.arange(9) % 2 == 0
    np.testing.assert_array_equal(again.subgraph(keep).names.numpy(), names[keep])
    with pytest.raises(InputError, match="occurs twice"):
        Graph(np.zeros((2, 0)), rng.random((9, 2)), names=np.where(keep, names[0], names))
    with pytest.raises(InputError, match="8 entries for the 9 nodes"):
        Graph(np.zeros((2, 0)), rng.random((9, 2)), names=names[:8])
    with pytest.raises(InputError, match="one integer or one text per node"):
        Graph(np.zeros((2, 0)), rng.random((9, 2)), names=rng.random(9))


@pytest.mark.parametrize("name", [b"caf\xe9", "caf\udce9"])
def test_names_that_are_not_utf8_are_refused_before_anything_is_trained(name):
    with pytest.raises(InputError, match=r"the name b?'caf\S+' is not UTF-8: give names as text"):
        Graph(np.zeros((2, 0)), np.ones((2, 2)), names=np.array([name, type(name)()]))


def test_shards_with_such_names_still_give_results():
    there = Names(np.frombuffer(b"caf\xe9x", np.uint8), np.array([0, 4, 5]))
    assert there.block(0, 2) == ["caf\\xe9", "x"]


class Trap:
    def __reduce__(self):
        return (os.mkdir, (str(Trap.target),))


def test_a_pickled_array_is_refused_and_never_opened(saved):
    folder, arrays = saved
    Trap.target = folder / "opened"
    np.savez(folder / "bad.npz", **{**arrays, "x_data": np.array([Trap()], dtype=object)})
    assert "pickled" in refused(folder / "bad.npz")
    np.savez(folder / "extra.npz", **{**arrays, "extra": np.array([Trap()], dtype=object)})
    assert_same(load(str(folder / "extra.npz")), graph_of(sparse=True, name="extra"))  # unknown members are left alone
    assert not Trap.target.exists()


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", b"\x93NUMPY\x01\x00", b"\x80\x04K\x01."], ids=["empty", "text", "npy", "pickle"]
)
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    assert "not an .npz archive" in refused(tmp_path / "bad.npz")


def test_a_file_of_python_code_is_refused_with_a_way_out(tmp_path):
    (tmp_path / "mine.py").write_text("def load(): ...")
    with pytest.raises(InputError, match=r"mine\.py is Python code: name what returns the graph.*mine\.py:load"):
        load(tmp_path / "mine.py")


def test_a_file_of_torch_save_is_refused_with_a_way_out(tmp_path):
    torch.save({"edge_index": torch.zeros(2, 3)}, tmp_path / "data.pt")
    with pytest.raises(InputError, match=r"data\.pt is a file of torch\.save.*my_file\.py:load"):
        load(tmp_path / "data.pt")


def test_a_damaged_or_foreign_archive_is_refused(saved):
    folder, arrays = saved
    whole = (folder / "good.npz").read_bytes()
    middle = bytearray(whole)
    middle[300:340] = bytes(40)
    (folder / "flipped.npz").write_bytes(bytes(middle))
    refused(folder / "flipped.npz")
    (folder / "short.npz").write_bytes(whole[: len(whole) // 2])
    refused(folder / "short.npz")
    np.savez_compressed(folder / "packed.npz", **arrays)
    packed = bytearray((folder / "packed.npz").read_bytes())
    packed[60:90] = b"\xff" * 30
    (folder / "packed.npz").write_bytes(bytes(packed))
    refused(folder / "packed.npz")
    with zipfile.ZipFile(folder / "zip.npz", "w") as archive:
        for key in arrays:
            archive.writestr(key, "text")
    refused(folder / "zip.npz")


def test_wrong_content_names_the_file(saved):
    folder, arrays = saved
    wrong = {
        "ids": {"edge_index": arrays["edge_index"] + 30},
        "indptr": {"x_indptr": arrays["x_indptr"][:-1]},
        "shape": {"x_shape": np.array([30])},
        "kind": {"x_indices": arrays["x_indices"] * 1.0},
        "column": {"x_indices": arrays["x_indices"] + 100},
    }
    for name, change in wrong.items():
        np.savez(folder / f"{name}.npz", **{**arrays, **change})
        refused(folder / f"{name}.npz")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16])
def test_small_counts_are_cast_to_float32(saved, dtype):
    folder, arrays = saved
    counts = (np.arange(arrays["x_data"].size) % 200).astype(dtype)
    np.savez(folder / "counts.npz", **{**arrays, "x_data": counts})
    graph = load(str(folder / "counts.npz"))
    assert graph.x.dtype == np.float32
    assert graph.x.sum() == counts.astype(np.float64).sum()


def dense_arrays(dtype=np.float32, order="C"):
    arrays = {"edge_index": np.array([[0, 1, 2], [1, 2, 0]]), "y": np.array([0, 1, 1])}
    for column, name in enumerate(("train_mask", "val_mask", "test_mask")):
        arrays[name] = np.arange(3) == column
    x = (np.random.default_rng(0).standard_normal((3, 700)) * 50).astype(dtype)
    return {**arrays, "x": np.asarray(x, order=order)}


def mapped_file(array):
    """The file in whose pages an array lies, or None."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return None if array is None else Path(array.filename)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("shift", range(4))
def test_uncompressed_features_stay_in_the_file(tmp_path, dtype, order, shift):
    arrays = {"pad" + "_" * shift: np.zeros(shift, np.uint8), **dense_arrays(dtype, order)}  # x at any byte
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    plain, packed = load(str(tmp_path / "plain.npz")), load(str(tmp_path / "packed.npz"))
    in_file = tmp_path / "plain.npz" if np.dtype(dtype).isnative else None  # another byte order is read and turned
    assert mapped_file(plain.x) == in_file
    assert mapped_file(packed.x) is None
    for x in (plain.x, packed.x):
        kinds = (np.dtype(dtype), np.dtype(dtype).newbyteorder("="))  # what is read is in this machine's byte order
        assert (type(x), x.dtype in kinds, x.flags.writeable) == (np.ndarray, True, False)
        assert x.flags.f_contiguous == (order == "F")
        np.testing.assert_array_equal(x, arrays["x"])


def test_a_saved_graph_is_mapped_and_may_be_saved_over_itself(tmp_path):
    graph, path = graph_of(), tmp_path / "kept.npz"
    for _ in range(2):
        save_npz(graph, path)
        graph = load(str(path))
        assert mapped_file(graph.x) == path
    assert_same(graph_of(), graph)


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("dtype", [np.int32, np.int64, ">i4"])
@pytest.mark.parametrize("ordered", [True, False])
def test_arcs_stay_in_the_file_where_they_lie_as_they_are_used(tmp_path, dtype, ordered, shift):
    """Arcs of 32 bits, by target, at an address that is a multiple of four stay in the file; others are copied, and
    equal.
    """
    arrays = dense_arrays()
    source, target = [2, 0, 1], [0, 1, 2]
    arrays["edge_index"] = np.array([source, target] if ordered else [source[::-1], target[::-1]], dtype=dtype)
    np.savez(tmp_path / "plain.npz", **{"pad" + "_" * shift: np.zeros(4, np.uint8), **arrays})
    graph = load(str(tmp_path / "plain.npz"))
    aligned = (len("pad") + shift + 4 + len("edge_index.npy")) % 4 == 0  # names are in the way, beside what is even
    assert (mapped_file(graph.indices) is not None) == (ordered and dtype == np.int32 and aligned)
    assert (graph.indices.dtype, graph.indices.tolist()) == (np.int32, [2, 0, 1])
    assert graph.indices.flags.aligned


def test_the_arcs_of_a_saved_graph_are_mapped(tmp_path):
    save_npz(graph_of(), tmp_path / "kept.npz")
    assert mapped_file(load(str(tmp_path / "kept.npz")).indices) == tmp_path / "kept.npz"


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_uncompressed_integers_are_cast_to_float32(tmp_path, dtype):
    arrays = dense_arrays(np.int64)
    arrays["x"] = np.abs(arrays["x"]).astype(dtype)
    np.savez(tmp_path / "whole.npz", **arrays)
    x = load(str(tmp_path / "whole.npz")).x
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, arrays["x"].astype(np.float32))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mapped_features_are_checked_like_read_ones(tmp_path, save):
    arrays = dense_arrays()
    arrays["x"][2, 5] = np.nan
    cases = {
        "nan": (arrays["x"], "node 2, column 5"),
        "empty": (np.empty((0, 4)), "at least one of each"),
        "flat": (np.ones(3), "give a matrix"),
        "text": (np.array([["a"], ["b"], ["c"]]), "give real numbers"),
        "complex": (np.ones((3, 1), complex), "give real numbers"),
        "object": (np.ones((3, 1), object), "pickled"),
    }
    for name, (x, text) in cases.items():
        save(tmp_path / f"{name}.npz", **{**arrays, "x": x})
        assert text in refused(tmp_path / f"{name}.npz")


def test_any_damage_to_mapped_features_is_refused(tmp_path):
    np.savez(tmp_path / "good.npz", **dense_arrays())
    good = (tmp_path / "good.npz").read_bytes()
    for size in range(0, len(good), 97):
        (tmp_path / "bad.npz").write_bytes(good[:size])
        refused(tmp_path / "bad.npz")
    first = good.index(dense_arrays()["x"].tobytes())
    for place in (first, first + 1234, first + 3 * 700 * 4 - 1):
        flipped = bytearray(good)
        flipped[place] ^= 1
        (tmp_path / "bad.npz").write_bytes(flipped)
        assert "CRC" in refused(tmp_path / "bad.npz")


@pytest.mark.parametrize("shape", ["(4, 700)", "(9999999999999, 700)", "(-3, -700)", "(3, 700", "(3, 'a')"])
def test_a_header_that_promises_other_data_than_there_is(tmp_path, shape):
    arrays = dense_arrays()
    x = arrays.pop("x")
    np.savez(tmp_path / "bad.npz", **arrays)
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "bad.npz", "a") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + x.tobytes())
    refused(tmp_path / "bad.npz")


def table():
    """name -> (nodes, arcs, features, classes) from the README beside the files."""
    rows = {}
    for line in (SHARED / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 9 and cells[1].replace(",", "").isdigit():
            nodes, arcs, features, classes = (int(cell.split()[0].replace(",", "")) for cell in cells[1:5])
            rows[cells[0]] = (nodes, arcs, features, classes, "sparse" in cells[3], "10 splits" in cells[5])
    return rows


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared graphs are not beside this checkout")
def test_every_shared_graph_loads_and_matches_its_readme():
    rows = table()
    assert set(rows) == {path.stem for path in SHARED.glob("*.npz")}
    for name, (nodes, arcs, features, classes, sparse, ten) in rows.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            graph = load(str(SHARED / f"{name}.npz"))
        found = (graph.num_nodes, graph.num_arcs, graph.num_features, graph.num_classes)
        assert found == (nodes, arcs, features, classes), name
        assert sp.issparse(graph.x) == sparse, name
        assert graph.num_splits == (10 if ten else 1), name
        assert graph.is_symmetric() != name.endswith("_directed"), name
        assert graph.multilabel == name.endswith("_multilabel"), name
        assert graph.name == name
