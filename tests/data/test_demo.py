"""The demo graph makes neighbours matter; tested without training, by means over hops."""

import time

import numpy as np
import pytest
import scipy.sparse as sp

from fullgraph.data import load


@pytest.fixture(scope="module")
def demo():
    return load("demo")


def test_size_and_speed(demo):
    begin = time.perf_counter()
    load("demo")
    assert time.perf_counter() - begin < 5
    assert (demo.num_nodes, demo.num_arcs, demo.num_features, demo.num_classes) == (12_000, 120_000, 32, 8)
    assert demo.is_symmetric()
    for mask in (demo.train_mask, demo.val_mask, demo.test_mask):
        assert np.array_equal(np.unique(demo.y[mask[:, 0]]), np.arange(8))


def hop_accuracy(graph, keep, hops=2):
    """Test accuracy of least squares on [x, Ax, .., A^k x], A the row mean over the arcs marked by `keep`."""
    source, target = graph.edge_index[:, keep]
    degree = np.bincount(target, minlength=graph.num_nodes).clip(1)
    mean = sp.csr_array((1 / degree[target], (target, source)), shape=(graph.num_nodes,) * 2)
    columns = [np.ones((graph.num_nodes, 1)), graph.x]
    for _ in range(hops):
        columns.append(mean @ columns[-1])
    inputs = np.concatenate(columns, axis=1)
    train, test = graph.train_mask[:, 0], graph.test_mask[:, 0]
    gram = inputs[train].T @ inputs[train] + np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs[train].T @ np.eye(8)[graph.y[train]])
    return float(((inputs[test] @ weights).argmax(axis=1) == graph.y[test]).mean())


def test_neighbours_matter_and_so_do_those_of_other_parts(demo):
    every = np.ones(demo.num_arcs, dtype=bool)
    part = np.random.default_rng(0).integers(0, 4, demo.num_nodes)
    source, target = demo.edge_index
    full = hop_accuracy(demo, every)
    assert full > hop_accuracy(demo, every, hops=0) + 0.1
    assert full > hop_accuracy(demo, part[source] == part[target]) + 0.03


def test_metis_finds_a_small_cut(demo):
    import pymetis

    _, part = pymetis.part_graph(4, adjacency=pymetis.CSRAdjacency(demo.indptr, demo.indices))
    source, target = demo.edge_index
    cut = (np.asarray(part)[source] != np.asarray(part)[target]).mean()
    assert 0.05 < cut < 0.2
