"""Features of arcs stay with their arcs: through sorting, files, PyG's Data, parts and shards."""

import numpy as np
import pytest

import fullgraph as fg
from fullgraph.partition import cut_parts, open_part, partition, write_parts


@pytest.fixture
def graph():
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 30, (2, 120))
    attr = np.stack([source, target, np.arange(120)], axis=1).astype(np.float32)  # an arc's own name
    masks = tuple(np.arange(30) % 3 == k for k in range(3))
    weight = rng.uniform(1, 2, 120).astype(np.float32)
    y = np.arange(30) % 4
    return fg.Graph(
        np.stack([source, target]), rng.standard_normal((30, 5)), y, masks, edge_weight=weight, edge_attr=attr
    )


def ends(graph):
    return graph.edge_index.T.astype(np.float32)


def test_they_are_sorted_with_the_arcs(graph):
    assert np.array_equal(graph.edge_attr[:, :2], ends(graph))
    assert len(np.unique(graph.edge_attr[:, 2])) == graph.num_arcs


def test_a_subgraph_keeps_them(graph):
    keep = np.arange(30) < 20
    part = graph.subgraph(keep)
    assert np.array_equal(part.edge_attr[:, :2], ends(part))


def test_npz_keeps_them(graph, tmp_path):
    fg.save_npz(graph, tmp_path / "g.npz")
    again = fg.load(str(tmp_path / "g.npz"))
    assert np.array_equal(again.edge_attr, graph.edge_attr)
    assert np.array_equal(again.edge_weight, graph.edge_weight)


def test_pyg_data_keeps_them(graph):
    pytest.importorskip("torch_geometric", reason="PyG is an extra")
    data = graph.to_pyg()
    again = fg.Graph.from_pyg(data)
    assert np.array_equal(again.edge_attr, graph.edge_attr)
    assert np.array_equal(again.edge_index, graph.edge_index)


@pytest.mark.parametrize("on_disk", [False, True])
def test_parts_have_their_own(graph, tmp_path, on_disk):
    assignment = partition(graph, 3, method="random", seed=0)
    parts = cut_parts(graph, assignment)
    if on_disk:
        write_parts(tmp_path / "parts", graph, assignment)
        parts = tuple(open_part(tmp_path / "parts", rank) for rank in range(3))
    for part in parts:
        ids = np.concatenate([part.ids.numpy(), part.halo_ids.numpy()])
        targets = np.repeat(part.ids.numpy(), np.diff(part.indptr.numpy()))
        assert np.array_equal(part.attr[:, 0].numpy(), ids[part.indices.numpy()])
        assert np.array_equal(part.attr[:, 1].numpy(), targets)


@pytest.mark.parametrize(
    ("attr", "text"),
    [(np.zeros((3, 2)), "3, 2.* for 120 edges"), (np.full((120, 2), np.nan), "NaN or infinity"), ("text", "edge_attr")],
)
def test_wrong_ones_are_refused(graph, attr, text):
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    with pytest.raises(fg.InputError, match=text):
        fg.Graph(graph.edge_index, graph.x, graph.y, masks, edge_attr=attr)
