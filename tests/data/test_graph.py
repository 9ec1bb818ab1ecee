"""A graph holds the given arcs, sorted by (target, source), and cannot be changed."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fullgraph.data import Graph
from fullgraph.errors import InputError


def random_parts(seed, num_nodes=40, num_arcs=300, splits=1):
    """Arcs of a directed multigraph with loops and duplicates, features, labels, masks, weights."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, num_nodes, (2, num_arcs))
    edges[:, : num_arcs // 10] = edges[:, num_arcs // 10 : 2 * (num_arcs // 10)]  # duplicates
    edges[1, -3:] = edges[0, -3:]  # loops
    role = np.stack([rng.permutation(np.arange(num_nodes) % 3) for _ in range(splits)], axis=1)
    masks = {name: role == k for k, name in enumerate(("train", "val", "test"))}
    x = rng.standard_normal((num_nodes, 5)).astype(np.float32)
    return edges, x, rng.integers(0, 4, num_nodes), masks, rng.random(num_arcs)


def arc_multiset(edges, weight):
    return sorted(zip(edges[0].tolist(), edges[1].tolist(), weight.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_every_weighted_arc_is_kept_and_rows_are_sorted(seed):
    edges, x, y, masks, weight = random_parts(seed, num_nodes=5 + 7 * seed)
    graph = Graph(edges, x, y, masks, edge_weight=weight)
    assert arc_multiset(graph.edge_index, graph.edge_weight) == arc_multiset(edges, weight)
    target_then_source = graph.edge_index[1].astype(np.int64) * graph.num_nodes + graph.edge_index[0]
    assert (np.diff(target_then_source) >= 0).all()
    assert np.array_equal(np.diff(graph.indptr), np.bincount(edges[1], minlength=graph.num_nodes))
    assert graph.indptr.dtype == np.int64
    assert graph.indices.dtype == np.int32


def test_duplicate_arcs_keep_their_own_weights_in_the_order_given():
    edges, x, y, masks, _ = random_parts(0)
    edges = np.tile(edges, 3)
    weight = np.arange(edges.shape[1], dtype=np.float64)
    graph = Graph(edges, x, y, masks, edge_weight=weight)
    order = np.lexsort((weight, edges[0], edges[1]))
    assert np.array_equal(graph.edge_weight, weight[order])


@pytest.mark.parametrize("weighted", [False, True])
def test_csr_rows_in_any_order_give_the_same_graph(weighted):
    edges, x, y, masks, weight = random_parts(3)
    direct = Graph(edges, x, y, masks, edge_weight=weight if weighted else None)
    by_target = np.argsort(edges[1], kind="stable")  # sources inside a row stay unsorted
    indptr = np.concatenate([[0], np.cumsum(np.bincount(edges[1], minlength=40))])
    again = Graph.from_csr(
        indptr, edges[0][by_target], x, y, masks, edge_weight=weight[by_target] if weighted else None
    )
    assert np.array_equal(direct.indptr, again.indptr)
    assert np.array_equal(direct.indices, again.indices)
    if weighted:
        assert np.array_equal(direct.edge_weight, again.edge_weight)


def test_sorted_csr_is_taken_without_a_copy():
    edges, x, y, masks, _ = random_parts(4)
    graph = Graph(edges, x, y, masks)
    again = Graph.from_csr(graph.indptr, graph.indices, graph.x, graph.y, masks)
    assert np.shares_memory(again.indices, graph.indices)
    assert np.shares_memory(again.x, graph.x)


def test_torch_and_numpy_give_the_same_graph():
    edges, x, y, masks, weight = random_parts(5, splits=2)
    plain = Graph(edges, x, y, masks, edge_weight=weight)
    three = tuple(torch.tensor(masks[name]) for name in ("train", "val", "test"))
    x_leaf = torch.tensor(x, requires_grad=True)
    torched = Graph(torch.tensor(edges), x_leaf, torch.tensor(y), three, edge_weight=torch.tensor(weight))
    for field in dataclasses.fields(Graph):
        a, b = getattr(plain, field.name), getattr(torched, field.name)
        assert not (a or b) if field.name == "fields" else np.array_equal(a, b), field.name
    assert Graph(edges, torch.tensor(x, dtype=torch.bfloat16), y, masks).x.dtype == np.float32


@pytest.mark.parametrize("kind", [sp.csr_array, sp.coo_matrix, lambda x: torch.tensor(x).to_sparse()])
def test_sparse_features_of_any_kind_become_one_csr_array(kind):
    edges, x, y, masks, _ = random_parts(6)
    x = np.where(x > 0.5, x, 0)
    graph = Graph(edges, kind(x), y, masks)
    assert isinstance(graph.x, sp.csr_array)
    assert np.array_equal(graph.x.toarray(), x)
    assert graph.num_features == x.shape[1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("uint8", "float32"), ("int64", "float32"), ("bool", "float32"), ("float16", "float16"), ("float64", "float64")],
)
def test_integer_features_become_float32_and_floats_stay(given, kept):
    edges, x, y, masks, _ = random_parts(7)
    assert Graph(edges, np.abs(x).astype(given), y, masks).x.dtype == kept


def test_a_graph_cannot_be_changed_and_leaves_the_callers_arrays_writable():
    edges, x, y, masks, weight = random_parts(8)
    graph = Graph(edges, x, y, masks, edge_weight=weight)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.name = "other"
    for name in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask", "edge_weight"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(graph, name)[0] = 1
    x[0] = 0
    y[0] = 0
    weight[0] = 0


@pytest.mark.parametrize("seed", range(4))
def test_subgraph_is_the_induced_one(seed):
    edges, x, y, masks, weight = random_parts(seed, splits=2)
    graph = Graph(edges, x, y, masks, edge_weight=weight)
    keep = graph.train_mask[:, 0]
    sub = graph.subgraph(keep)
    ids = np.flatnonzero(keep)
    inside = keep[edges[0]] & keep[edges[1]]
    assert arc_multiset(ids[sub.edge_index], sub.edge_weight) == arc_multiset(edges[:, inside], weight[inside])
    assert np.array_equal(sub.x, x[keep])
    assert np.array_equal(sub.y, y[keep])
    assert np.array_equal(sub.train_mask, graph.train_mask[keep])
    assert sub.num_classes == graph.num_classes
    assert graph.subgraph(np.ones(graph.num_nodes, dtype=bool)).num_arcs == graph.num_arcs
    with pytest.raises(InputError, match="boolean"):
        graph.subgraph(ids)


def test_symmetry_counts_duplicates_and_weights():
    edges, x, y, masks, weight = random_parts(9)
    both = np.concatenate([edges, edges[::-1]], axis=1)
    assert Graph(both, x, y, masks).is_symmetric()
    assert Graph(both, x, y, masks, edge_weight=np.tile(weight, 2)).is_symmetric()
    assert not Graph(edges, x, y, masks).is_symmetric()
    assert not Graph(both[:, 1:], x, y, masks).is_symmetric()
    assert not Graph(both, x, y, masks, edge_weight=np.arange(both.shape[1]) * 1.0).is_symmetric()


def test_one_column_masks_serve_every_split_and_multilabel_is_kept():
    edges, x, y, masks, _ = random_parts(10, splits=3)
    test_only = np.zeros(40, dtype=bool)
    test_only[0] = True
    masks = {
        "train": masks["train"] & ~test_only[:, None],
        "val": masks["val"] & ~test_only[:, None],
        "test": test_only,
    }
    multi = np.eye(4, dtype=np.uint8)[y]
    graph = Graph(edges, x, multi, masks)
    assert graph.num_splits == 3
    assert graph.multilabel
    assert graph.num_classes == 4
    assert graph.y.dtype == np.float32
    assert np.array_equal(graph.test_mask, np.repeat(test_only[:, None], 3, axis=1))


def test_a_graph_without_arcs_and_with_unlabelled_nodes_is_fine():
    _, x, y, masks, _ = random_parts(11)
    outside = np.flatnonzero(masks["test"][:, 0])[1:]
    masks["test"][outside] = False
    y[outside] = -1
    graph = Graph(np.empty((2, 0)), x, y, masks)
    assert graph.num_arcs == 0
    assert graph.is_symmetric()
    assert not graph.weighted
    assert graph.subgraph(graph.train_mask[:, 0]).num_arcs == 0
