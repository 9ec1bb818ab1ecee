"""Real numbers and pairs: from files, from PyG, and into shards."""

import numpy as np
import pytest

import fullgraph as fg
from fullgraph.data import Graph, load_npz, save_npz
from fullgraph.errors import InputError
from fullgraph.partition import Assignment, cut_parts, open_part, read_manifest, write_parts
from fullgraph.tasks import Classification, Link, Regression, fitted, task_for
from tests.support import random_graph

NODES, PAIRS = 30, 12


def arrays(**changes):
    rng = np.random.default_rng(0)
    split = np.arange(PAIRS) % 4
    made = {"pairs": rng.integers(0, NODES, (2, PAIRS)), "pair_y": (np.arange(PAIRS) // 4) % 2}
    made |= {f"pair_{name}_mask": split == number for number, name in enumerate(("train", "val", "test"))}
    return {key: value for key, value in (made | changes).items() if value is not None}


def graph_of(*, y=None, pairs=None, seed=0):
    base = random_graph(nodes=NODES, arcs=90, seed=seed)
    masks = {name: getattr(base, f"{name}_mask") for name in ("train", "val", "test")}
    return Graph(base.edge_index, base.x, y, None if y is None else masks, pairs=pairs, name="kept")


def same(one, other):
    for name in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.real, one.multilabel, one.labelled, one.num_classes) == (
        other.real, other.multilabel, other.labelled, other.num_classes
    )  # fmt: skip
    assert (one.pairs is None) == (other.pairs is None)
    if one.pairs is not None:
        for name in ("ends", "y", "split"):
            np.testing.assert_array_equal(getattr(one.pairs, name), getattr(other.pairs, name))


REAL = {
    "one": np.linspace(-1, 1, NODES),
    "float32": np.linspace(-1, 1, NODES, dtype=np.float32),
    "zeros and ones": (np.arange(NODES) % 2).astype(float),
    "columns": np.linspace(-1, 1, 3 * NODES).reshape(NODES, 3),
}


@pytest.mark.parametrize("name", REAL)
def test_real_numbers_come_back_from_a_file_and_from_shards(name, tmp_path):
    graph = graph_of(y=REAL[name])
    assert (graph.real, graph.multilabel, graph.num_classes) == (True, False, 3 if name == "columns" else 1)
    save_npz(graph, tmp_path / "kept.npz")
    same(load_npz(tmp_path / "kept.npz"), graph)
    part = np.arange(NODES, dtype=np.int32) % 2
    write_parts(tmp_path / "parts", graph, Assignment(part, 2, "case", 0))
    assert read_manifest(tmp_path / "parts").graph.real
    for rank in range(2):
        np.testing.assert_array_equal(open_part(tmp_path / "parts", rank).y, REAL[name][part == rank])


def test_columns_of_zeros_and_ones_are_classes_still():
    graph = graph_of(y=np.eye(3)[np.arange(NODES) % 3])
    assert (graph.real, graph.multilabel, graph.num_classes) == (False, True, 3)


@pytest.mark.parametrize("y", [None, np.arange(NODES) % 3], ids=["no labels", "labels"])
def test_pairs_come_back_from_a_file(y, tmp_path):
    graph = graph_of(y=y, pairs=arrays())
    save_npz(graph, tmp_path / "kept.npz")
    same(load_npz(tmp_path / "kept.npz"), graph)
    same(graph_of(y=y, pairs=arrays(pairs=arrays()["pairs"].T)), graph)
    assert graph_of(y=y, pairs=arrays(pair_y=None)).pairs.y.all()


def test_pyg_data():
    torch = pytest.importorskip("torch")
    data_of = pytest.importorskip("torch_geometric.data").Data
    base = random_graph(nodes=NODES, arcs=90)
    kept = {"x": torch.tensor(base.x), "edge_index": torch.from_numpy(base.edge_index.astype(np.int64))}
    linked = Graph.from_pyg(data_of(**kept, **{key: torch.tensor(value) for key, value in arrays().items()}))
    np.testing.assert_array_equal(linked.pairs.ends.T, arrays()["pairs"])
    assert not linked.labelled
    masks = {f"{name}_mask": torch.tensor(getattr(base, f"{name}_mask")[:, 0]) for name in ("train", "val", "test")}
    real = Graph.from_pyg(data_of(**kept, y=torch.linspace(0, 1, NODES), **masks))
    assert real.real
    again = Graph.from_pyg(real.to_pyg())
    np.testing.assert_array_equal(again.y, real.y)


def test_a_pair_is_in_the_part_of_its_first_node(tmp_path):
    graph = Link().prepared(graph_of(pairs=arrays()), 0)
    part = (np.random.default_rng(1).random(NODES) < 0.5).astype(np.int32)
    write_parts(tmp_path / "parts", graph, Assignment(part, 2, "case", 0))
    for rank, cut in enumerate(cut_parts(graph, Assignment(part, 2, "case", 0))):
        mine = np.flatnonzero(part[graph.pairs.ends[:, 0]] == rank)
        for found in (cut.pairs, open_part(tmp_path / "parts", rank).pairs):
            np.testing.assert_array_equal(found.index, mine)
            np.testing.assert_array_equal(found.ends, graph.pairs.ends[mine])
            np.testing.assert_array_equal(found.y, graph.pairs.y[mine])
            np.testing.assert_array_equal(found.split, graph.pairs.split[mine])


def test_the_task_follows_from_the_labels():
    cases = {
        Classification: graph_of(y=np.arange(NODES) % 3, pairs=arrays()),
        Regression: graph_of(y=REAL["one"]),
        Link: graph_of(pairs=arrays()),
    }
    for kind, graph in cases.items():
        task, prepared = fitted("auto", graph, 0)
        assert type(task) is kind
        assert (prepared.pairs is None) == (kind is not Link)
    with pytest.raises(InputError, match="kept lacks y, train_mask, val_mask, test_mask: training needs"):
        fitted("auto", graph_of(), 0)
    linked = fitted("link", cases[Classification], 0)[1]
    manifest = cut_parts(linked, Assignment(np.zeros(NODES, np.int32), 1, "case", 0), 0).manifest
    assert task_for("auto", manifest.graph, cut=True) == Link()
    with pytest.raises(InputError, match="kept was cut for link prediction; use --task link, or partition it again"):
        Classification().check(manifest.graph, cut=True)


def test_shards_of_nodes_have_no_pairs(tmp_path):
    write_parts(tmp_path / "parts", graph_of(y=np.arange(NODES) % 3), Assignment(np.zeros(NODES, np.int32), 1, "x", 0))
    with pytest.raises(InputError, match="kept was cut without pairs; partition it again with --task link"):
        fg.train(tmp_path / "parts", task="link", out=tmp_path / "run")


WRONG = {
    "shape": ({"pairs": np.zeros((3, 3), int)}, r"pairs is int64 \(3, 3\): give node ids"),
    "type": ({"pairs": np.zeros((2, PAIRS))}, "pairs is float64"),
    "range": ({"pairs": np.full((2, PAIRS), NODES)}, f"node id {NODES}, but ids run from 0 to {NODES - 1}"),
    "negative": ({"pairs": np.full((2, PAIRS), -1)}, "node id -1"),
    "labels": ({"pair_y": np.arange(PAIRS)}, "give 1 .an edge. or 0 for each"),
    "count": ({"pair_y": np.ones(3)}, r"pair_y of shape \(3,\) for 12 pairs"),
    "mask missing": ({"pair_val_mask": None}, "lacks pair_val_mask"),
    "mask type": ({"pair_val_mask": np.ones(PAIRS, int)}, "pair_val_mask is int64"),
    "overlap": ({"pair_val_mask": np.ones(PAIRS, bool)}, r"pair_val_mask overlaps another one \(pair 0\)"),
    "no edge": ({"pair_y": np.zeros(PAIRS)}, "pair_train_mask marks no pair that is an edge"),
    "no pairs": ({"pairs": None}, "pairs has to be a mapping with pairs"),
    "unknown": ({"pair_weight": np.ones(PAIRS)}, "has unknown names pair_weight"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pairs_are_one_line(name):
    changes, text = WRONG[name]
    with pytest.raises(InputError, match=text) as caught:
        graph_of(pairs=arrays(**changes))
    assert "\n" not in str(caught.value)
