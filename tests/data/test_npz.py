"""The project's .npz: what is written is read back, and nothing else is trusted."""

import dataclasses
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fullgraph.data import Graph, load, save_npz
from fullgraph.errors import InputError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def graph_of(sparse=False, multilabel=False, splits=1, weighted=False):
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
        name="kept",
    )


def assert_same(a, b):
    for field in dataclasses.fields(Graph):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if sp.issparse(left):
            assert np.array_equal(left.toarray(), right.toarray())
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
    with pytest.raises(InputError, match="No space left"):
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


@pytest.mark.parametrize("key", ["edge_index", "y", "train_mask", "val_mask", "test_mask", "x_data", "x_shape"])
def test_a_missing_key_is_named(saved, key):
    folder, arrays = saved
    del arrays[key]
    np.savez(folder / "bad.npz", **arrays)
    assert key in refused(folder / "bad.npz")


class Trap:
    def __reduce__(self):
        return (os.mkdir, (str(Trap.target),))


@pytest.mark.parametrize("key", ["x_data", "extra"])
def test_a_pickled_array_is_refused_and_never_opened(saved, key):
    folder, arrays = saved
    Trap.target = folder / "opened"
    np.savez(folder / "bad.npz", **{**arrays, key: np.array([Trap()], dtype=object)})
    assert "pickled" in refused(folder / "bad.npz")
    assert not Trap.target.exists()


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", b"\x93NUMPY\x01\x00", b"\x80\x04K\x01."], ids=["empty", "text", "npy", "pickle"]
)
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    assert "not an .npz archive" in refused(tmp_path / "bad.npz")


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
    import zipfile

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
