"""A graph's figures equal those of a loop over its arcs."""

import dataclasses

import numpy as np
import pytest

import fullgraph as fg
from fullgraph.data.describe import describe
from fullgraph.report.inspection import facts, remarks_on
from tests.support import random_graph


def graph_of(arcs, y, nodes=6, **more):
    masks = {name: np.arange(nodes) % 3 == place for place, name in enumerate(("train", "val", "test"))}
    return fg.Graph(np.array(arcs).T.reshape(2, -1), np.ones((nodes, 2), np.float32), np.array(y), masks, **more)


def test_figures_equal_a_loop_over_arcs():
    graph = random_graph(nodes=60, arcs=200)
    found = describe(graph)
    arcs = list(zip(*graph.edge_index.tolist(), strict=True))
    y = graph.y.tolist()
    proper = [(u, v) for u, v in arcs if u != v]
    touched = {node for arc in proper for node in arc}
    known = [(u, v) for u, v in proper if y[u] >= 0 and y[v] >= 0]
    same = sum(y[u] == y[v] for u, v in known) / len(known)
    ends = [y[node] for arc in known for node in arc]
    chance = sum((ends.count(c) / len(ends)) ** 2 for c in range(graph.num_classes))
    assert (found.nodes, found.arcs, found.self_loops) == (60, len(arcs), len(arcs) - len(proper))
    assert found.isolated == 60 - len(touched)
    assert found.directed == (sorted(arcs) != sorted((v, u) for u, v in arcs))
    assert found.homophily == pytest.approx(same, abs=1e-12)
    assert found.adjusted_homophily == pytest.approx((same - chance) / (1 - chance), abs=1e-12)
    assert found.mean_degree == pytest.approx(len(arcs) / 60)
    shares = [y.count(c) / sum(label >= 0 for label in y) for c in range(graph.num_classes)]
    assert (found.largest_class, found.smallest_class) == pytest.approx((max(shares), min(shares)))


def test_what_a_graph_may_be():
    pairs = [(0, 1), (1, 0), (2, 3), (3, 2)]
    found = describe(graph_of([*pairs, (4, 4)], [0, 0, 1, 1, 0, 1]))
    assert (found.directed, found.weighted, found.isolated, found.self_loops) == (False, False, 2, 1)
    assert (found.homophily, found.adjusted_homophily) == (1.0, 1.0)
    assert [dataclasses.astuple(split) for split in found.splits] == [(2, 2, 2)]
    assert describe(graph_of(pairs[:3], [0, 1, 0, 1, 0, 1])).directed
    weighted = describe(graph_of(pairs, [0, 1, 0, 1, 0, 1], edge_weight=np.array([1.0, 2.0, 1.0, 1.0])))
    assert (weighted.weighted, weighted.directed, weighted.homophily) == (True, True, 0.0)
    real = describe(graph_of(pairs, [0.5, 1, 0, 1, 0, 1]))
    assert (real.labels, real.homophily, real.largest_class) == ("real numbers", None, None)
    bare = describe(fg.Graph(np.array(pairs).T, np.ones((6, 2), np.float32)))
    assert (bare.labels, bare.splits, bare.labelled) == ("none", (), 0)
    one = describe(graph_of(pairs, [0] * 6))
    assert (one.homophily, one.adjusted_homophily) == (1.0, None)  # nothing to adjust: all is of one class
    none = describe(graph_of(np.empty((0, 2), np.int64), [0, 1, 0, 1, 0, 1]))
    assert (none.homophily, none.isolated, none.largest_degree) == (None, 6, 0)
    for about in (found, weighted, real, bare, one, none):
        assert all(text for _, text in facts(dataclasses.asdict(about)))


EVEN = {
    "nodes": (5, 5), "edges": (9, 9), "halo": (1, 1), "train": (2, 2), "halo_rows": 2, "edge_cut": 2,
    "edge_imbalance": 1.0, "node_imbalance": 1.0, "types": (),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"edges": (14, 4)}, "rank 0 has 1.6x the mean's edges"),
        ({"nodes": (2, 8)}, "rank 1 has 1.6x the mean's nodes"),
        ({"halo": (1, 4)}, "rank 1 has 1.6x the mean's halo rows"),
        ({"train": (0, 4)}, "rank 0 has no training node"),
        ({"halo_rows": 25}, "2.5 halo rows per node"),
    ],
)
def test_an_uneven_cut_is_remarked_upon(change, words):
    about = {"nodes": 10, "isolated": 0, "largest_class": 0.5, "smallest_class": 0.5, "adjusted_homophily": 0.9}
    found = remarks_on(about, EVEN | change)
    assert len(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"isolated": 4}, "40% of the nodes have no neighbour"),
        ({"smallest_class": 0.01}, "classes are uneven"),
        ({"adjusted_homophily": 0.1}, "neighbours are often of other classes"),
    ],
)
def test_a_graph_is_remarked_upon(change, words):
    about = {"nodes": 10, "isolated": 0, "largest_class": 0.5, "smallest_class": 0.5, "adjusted_homophily": 0.9}
    (found,) = remarks_on(about | change, EVEN)
    assert words in found
