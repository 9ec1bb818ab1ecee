"""Shards on disk: opened as written; damaged or unfinished shards are never opened."""

import errno
import json
import os
from dataclasses import fields

import numpy as np
import pytest
import torch

from fullgraph.errors import InputError
from fullgraph.partition import (
    SparseRows,
    cut_parts,
    is_partition_folder,
    npy,
    open_part,
    quality,
    read_assignment,
    read_manifest,
    store,
    write_parts,
)
from fullgraph.partition.whole import read_graph
from fullgraph.storage import NEW, atomic, sealed


def assert_same(a, b):
    """Assert that two parts are equal, tensor by tensor."""
    for field in fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "manifest":
            for name in ("schema", "graph", "parts", "method", "seed", "features", "split", "figures"):
                assert getattr(left, name) == getattr(right, name), name
        elif isinstance(left, SparseRows):
            assert_same(left, right)
        elif isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype
            assert torch.equal(left, right), field.name
        elif field.name != "folder":  # a part that was opened knows where it lies
            assert left == right, field.name


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def shards(tmp_path, make_graph, scatter):
    """A good folder of three parts, one of them empty."""
    graph = make_graph()
    write_parts(tmp_path / "shards", graph, scatter(graph, 3))
    return tmp_path / "shards"


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"multilabel": True, "weighted": False}], ids=str)
@pytest.mark.parametrize("features", ["none", "row", "standard"])
def test_the_whole_graph_is_read_back(tmp_path, make_graph, scatter, options, features):
    """Cut from what was read, with the same parts, a folder has the same bytes; features are not scaled twice."""
    graph = make_graph(**options)
    write_parts(tmp_path / "one", graph, scatter(graph, 3), features=features, split=1)
    again, scaler = read_graph(tmp_path / "one")
    write_parts(tmp_path / "two", again, scatter(again, 3), features=scaler, split=1)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"multilabel": True, "weighted": False}], ids=str)
@pytest.mark.parametrize("features", ["none", "row", "standard"])
def test_what_is_opened_is_what_was_cut(tmp_path, make_graph, scatter, parts, options, features):
    graph = make_graph(**options)
    assignment = scatter(graph, parts)
    write_parts(tmp_path / "shards", graph, assignment, features=features, split=1)
    for part in cut_parts(graph, assignment, features=features, split=1):
        assert_same(open_part(tmp_path / "shards", part.rank, split=1), part)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("features", ["none", "row", "standard"])
def test_features_scaled_by_a_split_open_with_that_split_only(tmp_path, make_graph, scatter, features, sparse):
    graph = make_graph(sparse=sparse)
    folder = tmp_path / "shards"
    for fitted in range(graph.num_splits):
        assert write_parts(folder, graph, scatter(graph, 2), features=features, split=fitted).split == fitted
        assert read_manifest(folder).split == fitted
        for split in range(graph.num_splits):
            if features != "standard" or split == fitted:
                part = open_part(folder, 0, split=split)
                np.testing.assert_array_equal(part.train_mask, graph.train_mask[part.ids, split])
                continue
            with pytest.raises(InputError) as caught:
                open_part(folder, 0, split=split)
            assert str(caught.value) == (
                f"{folder} was scaled with the training nodes of split {fitted}; partition again with --split {split}"
            )
        for split in (-1, graph.num_splits):
            with pytest.raises(InputError, match=f"split {split} does not exist"):
                open_part(folder, 0, split=split)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_the_type_of_features_is_kept(tmp_path, make_graph, scatter, dtype):
    graph = make_graph(dtype=dtype)
    write_parts(tmp_path / "shards", graph, scatter(graph, 2))
    assert open_part(tmp_path / "shards", 0).x.numpy().dtype == dtype


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_size_of_a_block_changes_nothing(tmp_path, make_graph, scatter, monkeypatch, rows, sparse):
    graph = make_graph(sparse=sparse)
    assignment = scatter(graph, 3)
    write_parts(tmp_path / "whole", graph, assignment)
    monkeypatch.setattr(store, "BLOCK_ROWS", rows)
    write_parts(tmp_path / "blocks", graph, assignment)
    assert tree(tmp_path / "blocks") == tree(tmp_path / "whole")


def test_the_manifest_says_what_was_written(shards, make_graph, scatter):
    graph = make_graph()
    manifest = read_manifest(shards)
    facts = manifest.graph
    assert (facts.name, facts.nodes, facts.arcs, facts.features) == ("random0", 40, 150, 6)
    assert (facts.classes, facts.splits) == (graph.num_classes, 3)
    assert (facts.multilabel, facts.weighted, facts.sparse) == (False, True, False)
    assert (manifest.schema, manifest.parts, manifest.method, manifest.seed) == (1, 3, "test", 5)
    assert (manifest.features, manifest.split) == ("none", 0)
    assert manifest.figures == quality(graph, scatter(graph, 3))
    assert set(manifest.files) == set(tree(shards)) - {"manifest.json"}
    np.testing.assert_array_equal(read_assignment(shards).part, scatter(graph, 3).part)
    assert is_partition_folder(shards)
    assert not is_partition_folder(shards.parent)


@pytest.mark.parametrize("name", ["nodes", "edges", "halo", "train"])
def test_figures_of_other_parts_are_refused(shards, name):
    found = json.loads((shards / "manifest.json").read_text())
    found.pop("checksum")
    found["figures"][name].pop()
    (shards / "manifest.json").write_text(json.dumps(sealed(found)))
    with pytest.raises(InputError, match="its figures are not those of"):
        read_manifest(shards)


def test_a_rank_maps_its_own_files_and_reads_no_others(shards):
    for other in (shards / "part-1", shards / "part-2"):
        for path in other.iterdir():
            path.unlink()
    part = open_part(shards, 0)
    with open("/proc/self/maps") as maps:
        mapped = maps.read()
    for name in ("x", "indices", "indptr", "weight", "ids", "y"):
        assert str(shards / "part-0" / f"{name}.npy") in mapped
    before = tree(shards)
    part.x.add_(1)  # copy-on-write: the file keeps its bytes
    assert tree(shards) == before


def test_any_flipped_byte_is_found_and_its_file_named(shards):
    files = [name for name in read_manifest(shards).files if name.startswith("part-0/")]
    assert len(files) == 13
    rng = np.random.default_rng(0)
    for name in files:
        path = shards / name
        good = path.read_bytes()
        for place in {0, len(good) - 1, *rng.integers(0, len(good), 3).tolist()}:
            bad = bytearray(good)
            bad[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(bad)
            with pytest.raises(InputError, match=rf"^[^\n]*{name} is damaged[^\n]*partition` again$"):
                open_part(shards, 0)
        path.write_bytes(good)
    open_part(shards, 0)


def same_json(a, b):
    try:
        return json.loads(bytes(a)) == json.loads(bytes(b))
    except ValueError:
        return False


def test_any_flipped_byte_of_the_manifest_is_found(shards):
    path = shards / "manifest.json"
    good = path.read_bytes()
    for place in range(0, len(good), 11):
        bad = bytearray(good)
        bad[place] ^= 2
        path.write_bytes(bad)
        if same_json(bad, good):  # a change of white space
            continue
        with pytest.raises(InputError, match=r"^[^\n]+$"):
            read_manifest(shards)


def test_a_manifest_with_other_fields_is_refused(shards):
    path = shards / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    for changed in ({key: value for key, value in content.items() if key != "split"}, content | {"more": 1}):
        path.write_text(json.dumps(sealed(changed)))
        with pytest.raises(InputError, match=r"^[^\n]*manifest\.json (lacks|has unknown keys) [^\n]*partition` again$"):
            open_part(shards, 0)


def test_missing_and_shortened_files(shards):
    path = shards / "part-0" / "x.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    for verify in (True, False):
        with pytest.raises(InputError, match=r"part-0/x\.npy is damaged \(\d+ bytes instead of \d+\)"):
            open_part(shards, 0, verify=verify)
    path.unlink()
    with pytest.raises(InputError, match=r"part-0/x\.npy is missing: run `fullgraph partition` again"):
        open_part(shards, 0)


def test_other_schemas_missing_manifests_and_wrong_ranks(shards, tmp_path):
    for rank in (-1, 3):
        with pytest.raises(InputError, match=f"holds 3 parts, so there is no rank {rank}"):
            open_part(shards, rank)
    with pytest.raises(InputError, match="split 3 does not exist"):
        open_part(shards, 0, split=3)
    path = shards / "manifest.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(sealed(content | {"schema": 7})))
    with pytest.raises(InputError, match="holds shards of schema 7, this version reads schema 1: run `fullgraph"):
        open_part(shards, 0)
    for text in ("", "[]", "{}", "{", "null"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"manifest\.json (is not JSON|has no checksum)"):
            read_manifest(shards)
    path.unlink()
    for folder in (shards, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="is not a folder of shards"):
            read_manifest(folder)


@pytest.mark.parametrize("after", [0, 1, 10, 30])
@pytest.mark.parametrize(
    ("failure", "seen"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (RuntimeError("any bug"), RuntimeError),
    ],
    ids=["disk full", "interrupt", "bug"],
)
def test_a_failure_midway_leaves_what_was_there(
    shards, tmp_path, make_graph, scatter, monkeypatch, after, failure, seen
):
    before = tree(tmp_path)
    write, calls = npy.NpyWriter._write, []

    def failing(self, data, mode):
        calls.append(mode)
        if len(calls) > after:
            raise failure
        write(self, data, mode)

    monkeypatch.setattr(npy.NpyWriter, "_write", failing)
    graph = make_graph(7)
    for folder in (shards, tmp_path / "fresh"):
        calls.clear()
        with pytest.raises(seen) as caught:
            write_parts(folder, graph, scatter(graph, 4))
        if seen is InputError:
            assert str(caught.value) == f"cannot write {folder}: the disk is full; free some space"
        assert tree(tmp_path) == before
        assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_a_failed_rename_brings_the_old_folder_back(shards, tmp_path, make_graph, scatter, monkeypatch):
    before = tree(tmp_path)
    rename = os.rename

    def failing(source, target, **folders):
        if os.path.basename(source) == NEW:
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target, **folders)

    monkeypatch.setattr(atomic, "_swap_at_once", lambda one, other: False)  # as on a network file system
    monkeypatch.setattr(os, "rename", failing)
    graph = make_graph(7)
    with pytest.raises(InputError, match="the disk reports an error"):
        write_parts(shards, graph, scatter(graph, 4))
    assert tree(tmp_path) == before


def test_a_good_folder_is_replaced_as_a_whole(shards, tmp_path, make_graph, scatter):
    graph = make_graph(7)
    write_parts(shards, graph, scatter(graph, 2))
    assert read_manifest(shards).graph.name == "random7"
    assert sorted(path.name for path in shards.iterdir()) == ["assignment.npy", "manifest.json", "part-0", "part-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_folders_that_hold_other_things_are_left_alone(tmp_path, make_graph, scatter):
    graph = make_graph()
    mine = tmp_path / "mine"
    mine.mkdir()
    write_parts(mine / "deeper" / "shards", graph, scatter(graph, 2))
    before = tree(tmp_path)
    with pytest.raises(InputError, match="holds something other than shards"):
        write_parts(mine, graph, scatter(graph, 2))
    file = mine / "deeper" / "shards" / "manifest.json"
    with pytest.raises(InputError, match="exists and is not a folder"):
        write_parts(file, graph, scatter(graph, 2))
    with pytest.raises(InputError, match=r"cannot write .*; choose another folder"):
        write_parts(file / "below", graph, scatter(graph, 2))
    assert tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    write_parts(tmp_path / "empty", graph, scatter(graph, 2))
    assert is_partition_folder(tmp_path / "empty")


class Recorder:
    """Replaces a memory-mapped matrix, and records every requested slice."""

    def __init__(self, rows):
        self.rows, self.slices = rows, []
        self.shape, self.dtype = rows.shape, rows.dtype

    def __getitem__(self, key):
        assert isinstance(key, slice), "features may be read by slices of rows only"
        self.slices.append((key.start or 0, key.stop))
        return self.rows[key]


@pytest.mark.parametrize("features", ["none", "row"])
def test_features_are_read_in_order_a_block_at_a_time(tmp_path, make_graph, scatter, monkeypatch, features):
    graph = make_graph()
    assignment = scatter(graph, 3)
    recorder = Recorder(graph.x)
    object.__setattr__(graph, "x", recorder)
    monkeypatch.setattr(store, "BLOCK_ENTRIES", 8 * graph.num_features)
    write_parts(tmp_path / "shards", graph, assignment, features=features)
    read = [(low, high) for low, high in recorder.slices if high > low]
    assert read == [(low, low + 8) for low in range(0, 40, 8)]


def test_a_memory_mapped_matrix_goes_through(tmp_path, make_graph, scatter):
    graph = make_graph()
    assignment = scatter(graph, 3)
    np.save(tmp_path / "x.npy", graph.x)
    write_parts(tmp_path / "memory", graph, assignment)
    object.__setattr__(graph, "x", np.load(tmp_path / "x.npy", mmap_mode="r"))
    write_parts(tmp_path / "mapped", graph, assignment)
    assert tree(tmp_path / "mapped") == tree(tmp_path / "memory")
