"""Properties of every partitioner, and the special property of each."""

import importlib
from itertools import pairwise

import numpy as np
import pytest

from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.partition import PARTITIONERS, Metis, partition, quality, undirected_csr
from fullgraph.partition import metis as metis_module

EXTRAS = ("kaminpar", "mtkahypar")


@pytest.fixture(params=PARTITIONERS)
def method(request):
    if request.param in EXTRAS:
        pytest.importorskip(request.param)
    return request.param


def tiny(edges, nodes):
    kind = np.arange(nodes) % 3
    return Graph(np.array(edges, dtype=int).reshape(2, -1), np.ones((nodes, 1)), kind, [kind == k for k in range(3)])


def test_assignments_are_valid_and_follow_the_seed(make_graph, communities, method):
    for graph in (make_graph(), communities):
        for parts in (1, 2, 5, 9):
            found = partition(graph, parts, method, seed=3)
            assert found.part.shape == (graph.num_nodes,)
            assert found.part.dtype == np.int32
            assert found.part.min() >= 0
            assert found.part.max() < parts
            assert (found.parts, found.method, found.seed) == (parts, method, 3)
            np.testing.assert_array_equal(found.part, partition(graph, parts, method, seed=3).part)


def test_awkward_graphs(method):
    awkward = {
        "no arcs": tiny([[], []], 6),
        "self loops only": tiny([[0, 1, 1], [0, 1, 1]], 6),
        "one arc": tiny([[0], [1]], 6),
        "star": tiny([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0]], 6),
        "two components": tiny([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]], 6),
        "complete": tiny(np.indices((6, 6)).reshape(2, -1), 6),
    }
    for graph in awkward.values():
        for parts in range(1, 7):
            found = partition(graph, parts, method)
            assert set(found.part.tolist()) <= set(range(parts))


def test_parts_without_arcs_between_them_are_even(method):
    found = partition(tiny([[], []], 12), 4, method)
    assert np.bincount(found.part, minlength=4).tolist() == [3, 3, 3, 3]


def test_bad_numbers_of_parts_are_one_line(make_graph, method):
    with pytest.raises(InputError, match="41 parts for 40 nodes"):
        partition(make_graph(), 41, method)
    with pytest.raises(InputError, match="0 parts"):
        partition(make_graph(), 0, method)


def test_unknown_names_list_the_known_ones(make_graph):
    with pytest.raises(
        InputError, match=r"'metsi' is unknown \(did you mean metis\?\); known: metis, metis-cut, metis-volume, random"
    ):
        partition(make_graph(), 2, "metsi")
    with pytest.raises(
        InputError, match=r"no option objektive \(did you mean objective\?\); known: objective=auto, node_weight="
    ):
        partition(make_graph(), 2, "metis", objektive="cut")
    with pytest.raises(InputError, match="objective=halo: one of auto, cut, volume"):
        partition(make_graph(), 2, "metis", objective="halo")
    with pytest.raises(InputError, match="node_weight=-1: at least 0"):
        partition(make_graph(), 2, "metis", node_weight=-1)
    with pytest.raises(InputError, match="both zero"):
        partition(make_graph(), 2, "metis", node_weight=0, degree_weight=0)


@pytest.mark.parametrize("name", EXTRAS)
def test_unknown_presets_list_the_known_ones(make_graph, name):
    pytest.importorskip(name)
    with pytest.raises(InputError, match=r"preset.*best.* default"):
        partition(make_graph(), 2, name, preset="best")


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_package_says_how_to_install_it(make_graph, monkeypatch, name):
    there = importlib.import_module

    def missing(module, *_):
        if module == name:
            raise ImportError(module)
        return there(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=rf"{name} is not installed: run `pip install fullgraph\[partition\]`"):
        partition(make_graph(), 2, name)


def test_every_searching_partitioner_beats_random_on_communities(communities, method):
    if method in ("random", "contiguous", "banded"):
        return
    found = quality(communities, partition(communities, 4, method))
    blind = quality(communities, partition(communities, 4, "random"))
    assert found.halo_rows < 0.6 * blind.halo_rows
    assert found.edge_imbalance < 1.2
    assert found.node_imbalance < 1.2


def test_random_and_contiguous_differ_by_one_node_at_most(make_graph):
    graph = make_graph()
    for name in ("random", "contiguous"):
        sizes = np.bincount(partition(graph, 7, name).part, minlength=7)
        assert sizes.max() - sizes.min() <= 1
    assert (np.diff(partition(graph, 7, "contiguous").part) >= 0).all()
    assert (partition(graph, 7, "random", 1).part != partition(graph, 7, "random", 2).part).any()


def test_auto_keeps_the_objective_with_fewer_halo_rows(make_graph, communities):
    for graph in (communities, make_graph(nodes=120, arcs=700)):
        for parts in (2, 5):
            rows = {
                name: quality(graph, partition(graph, parts, name)).halo_rows
                for name in ("metis", "metis-cut", "metis-volume")
            }
            assert rows["metis"] == min(rows.values())


def test_auto_leaves_volume_out_on_large_graphs(communities, monkeypatch):
    asked = []
    search = metis_module.metis_parts

    def spy(*arguments, volume, **options):
        asked.append("volume" if volume else "cut")
        return search(*arguments, volume=volume, **options)

    monkeypatch.setattr(metis_module, "metis_parts", spy)
    partition(communities, 2)
    monkeypatch.setattr(metis_module, "VOLUME_LIMIT", 10)
    partition(communities, 2)
    assert asked == ["cut", "volume", "cut"]


def test_the_degree_weight_evens_out_arcs():
    rng = np.random.default_rng(0)
    # Half of the nodes hold nearly all arcs, so that equal nodes are unequal arcs.
    dense, thin = rng.integers(0, 200, (2, 8000)), 200 + rng.integers(0, 200, (2, 400))
    graph = tiny(np.concatenate([dense, thin], axis=1), 400)
    nodes_only = quality(graph, Metis(node_weight=1, degree_weight=0).assign(graph, 4, seed=0))
    arcs_only = quality(graph, Metis(node_weight=0, degree_weight=1).assign(graph, 4, seed=0))
    assert nodes_only.node_imbalance < 1.1
    assert arcs_only.edge_imbalance < 1.1 < nodes_only.edge_imbalance


@pytest.mark.parametrize("seed", [0, 1])
def test_partitioners_see_each_neighbour_once_and_never_the_node_itself(make_graph, seed):
    graph = make_graph(seed)
    expected = [set() for _ in range(graph.num_nodes)]
    for u, v in zip(*graph.edge_index.tolist(), strict=True):
        if u != v:
            expected[u].add(v)
            expected[v].add(u)
    indptr, indices = undirected_csr(graph)
    rows = [indices[low:high].tolist() for low, high in pairwise(indptr.tolist())]
    assert [sorted(row) for row in rows] == [sorted(row) for row in expected]


def test_many_duplicates_do_not_cancel():
    graph = tiny([[0] * 256, [1] * 256], 3)
    indptr, indices = undirected_csr(graph)
    assert indptr.tolist() == [0, 1, 2, 2]
    assert indices.tolist() == [1, 0]


def test_mtkahypar_minimises_the_halo_of_directed_graphs():
    pytest.importorskip("mtkahypar")
    rng = np.random.default_rng(0)
    # Hubs that many nodes read and that read none: cutting them costs few halo rows and many arcs.
    graph = tiny(np.stack([rng.integers(0, 10, 900), rng.integers(10, 300, 900)]), 300)
    by_net = quality(graph, partition(graph, 3, "mtkahypar")).halo_rows
    assert by_net <= quality(graph, partition(graph, 3, "metis-cut")).halo_rows


def test_banded_gives_every_part_a_share_of_each_run():
    """A path in a random order is found again; the parts named in `empty` are empty."""
    path = np.random.default_rng(0).permutation(60)
    found = partition(tiny([path[:-1], path[1:]], 60), 3, "banded", blocks=2, empty="1")
    position = found.position[path]
    assert np.array_equal(position, np.arange(60)) or np.array_equal(position, np.arange(60)[::-1])
    assert found.part[np.argsort(found.position)].tolist() == [0] * 15 + [2] * 15 + [0] * 15 + [2] * 15
    for empty, text in {"0,1,2": "name some of the parts 0 to 2", "3": "name some of", "one": "a whole number"}.items():
        with pytest.raises(InputError, match=f"empty={empty}: .*{text}"):
            partition(tiny([[0], [1]], 6), 3, "banded", empty=empty)
