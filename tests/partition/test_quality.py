"""Figures against definitions written out in sets."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.partition import Assignment, Quality, quality
from fullgraph.values import read_value


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_figures_equal_their_definitions(make_graph, scatter, parts, seed):
    graph = make_graph(seed)
    assignment = scatter(graph, parts)
    owner = assignment.part.tolist()
    arcs = list(zip(*graph.edge_index.tolist(), strict=True))
    found = quality(graph, assignment, split=1)
    halo = [{u for u, v in arcs if owner[v] == p != owner[u]} for p in range(parts)]
    assert found.halo == tuple(len(rows) for rows in halo)
    assert found.halo_rows == sum(found.halo)
    assert found.edge_cut == sum(owner[u] != owner[v] for u, v in arcs)
    assert found.nodes == tuple(owner.count(p) for p in range(parts))
    assert found.edges == tuple(sum(owner[v] == p for _, v in arcs) for p in range(parts))
    assert found.train == tuple(int(graph.train_mask[assignment.part == p, 1].sum()) for p in range(parts))
    assert found.edge_imbalance == pytest.approx(max(found.edges) * parts / len(arcs))
    assert found.node_imbalance == pytest.approx(max(found.nodes) * parts / graph.num_nodes)


def test_a_directed_arc_is_halo_of_its_target_only():
    masks = tuple(np.arange(3) == k for k in range(3))
    graph = Graph([[0, 0], [1, 2]], np.ones((3, 1)), [0, 1, 0], masks)
    found = quality(graph, Assignment(np.array([0, 1, 1]), 2))
    assert (found.halo, found.halo_rows, found.edge_cut) == ((0, 1), 1, 2)


def test_a_graph_without_arcs_is_balanced(make_graph, scatter):
    graph = make_graph(arcs=0)
    found = quality(graph, scatter(graph, 2))
    assert (found.edge_cut, found.halo_rows, found.edge_imbalance) == (0, 0, 1.0)


def test_the_figures_survive_json(make_graph, scatter):
    graph = make_graph()
    figures = quality(graph, scatter(graph, 3))
    assert read_value(Quality, json.loads(json.dumps(asdict(figures))), "figures") == figures


def test_an_unknown_split_is_one_line(make_graph, scatter):
    graph = make_graph()
    with pytest.raises(InputError, match="split 3 does not exist: choose from 0 to 2"):
        quality(graph, scatter(graph, 2), split=3)
