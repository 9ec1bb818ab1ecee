"""The streaming partitioner: balance, votes on directed graphs, cuts compared with others, and memory for nodes
only.
"""

import importlib
import tracemalloc

import numpy as np
import pytest

from fullgraph.data import Graph, load, save_npz
from fullgraph.errors import InputError
from fullgraph.partition import Fennel, Metis, Random, base, fennel, fennel_loops, partition, quality, write_parts


def graph_of(edges, nodes):
    kind = np.arange(nodes) % 3
    return Graph(np.asarray(edges).reshape(2, -1), np.ones((nodes, 1), np.float32), kind, [kind == k for k in range(3)])


def both_ways(edges):
    return np.concatenate([edges, edges[::-1]], axis=1)


def grid(side):
    ids = np.arange(side * side).reshape(side, side)
    right, down = (ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])
    return graph_of(
        both_ways(np.concatenate([np.stack(pair).reshape(2, -1) for pair in (right, down)], axis=1)), ids.size
    )


GRAPHS = {
    "blocks": lambda: load("sbm:nodes=3000,edges=20000,features=2"),
    "blocks, directed": lambda: load("sbm:nodes=3000,edges=20000,features=2,directed=1"),
    "power law": lambda: load("rmat:nodes=3000,edges=20000,features=2"),
    "power law, directed": lambda: load("rmat:nodes=3000,edges=20000,features=2,directed=1"),
    "grid": lambda: grid(50),
    "star": lambda: graph_of(both_ways(np.stack([np.zeros(999, int), np.arange(1, 1000)])), 1000),
    "hubs that read all others": lambda: graph_of([np.arange(1000), np.arange(1000) % 7], 1000),
    "path and isolated nodes": lambda: graph_of(both_ways(np.stack([np.arange(400), np.arange(1, 401)])), 2000),
    "parallel arcs and loops": lambda: graph_of(np.random.default_rng(0).integers(0, 60, (2, 5000)), 500),
}


@pytest.fixture(params=GRAPHS)
def graph(request):
    return GRAPHS[request.param]()


def weights(graph, a=None, b=1.0):
    degree = np.diff(graph.indptr)
    return (max(1.0, degree.mean()) if a is None else a) + b * degree


@pytest.mark.parametrize("clusters", [0, 256])
@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize(("a", "b"), [(None, 1.0), (1, 0), (0, 1)])
def test_no_part_is_heavier_than_it_may_be(graph, clusters, parts, a, b):
    """At most 3 % above the mean, or one node above it if nodes are heavier than that."""
    found = Fennel(clusters=clusters, node_weight=a, degree_weight=b).assign(graph, parts, seed=1)
    weight = weights(graph, a, b)
    mean = weight.sum() / parts
    rounding = 0.001 * weight.mean() * graph.num_nodes / parts  # weights are whole thousandths of their mean
    load = np.bincount(found.part, weight, parts)
    assert load.max() <= max(1.03 * mean, mean + weight.max()) + rounding


def test_the_imbalance_is_what_was_asked_for():
    graph = GRAPHS["power law"]()
    loads = {}
    for imbalance in (0.03, 0.5):
        found = Fennel(imbalance=imbalance, clusters=0).assign(graph, 4, seed=0)
        loads[imbalance] = np.bincount(found.part, weights(graph), 4)
    assert loads[0.03].max() / loads[0.03].mean() < 1.031 < loads[0.5].max() / loads[0.5].mean() < 1.501


@pytest.mark.parametrize("clusters", [0, 1024])
@pytest.mark.parametrize("parts", [2, 5])
def test_no_graph_is_cut_worse_than_at_random(graph, parts, clusters):
    """Both balance only nodes: otherwise a star's hub may have to be apart from most of its leaves."""
    found = Fennel(clusters=clusters, node_weight=1, degree_weight=0).assign(graph, parts, seed=0)
    assert quality(graph, found).edge_cut <= quality(graph, Random().assign(graph, parts, seed=0)).edge_cut


def test_shuffled_communities_are_found():
    """Nodes are numbered at random, so consecutive ids carry no information; METIS's cut is the yardstick."""
    graph = load("sbm:nodes=20000,edges=100000,features=2")
    cuts = {name: quality(graph, partition(graph, 4, name)) for name in ("fennel", "contiguous", "metis")}
    assert cuts["fennel"].edge_cut < 0.25 * cuts["contiguous"].edge_cut
    assert cuts["fennel"].edge_cut < 1.4 * cuts["metis"].edge_cut
    assert cuts["fennel"].halo_rows < 1.3 * cuts["metis"].halo_rows


def test_passes_and_clusters_pay():
    def cut_of(graph, **options):
        return quality(graph, Fennel(**options).assign(graph, 4, seed=0)).edge_cut

    blocks, mesh = load("sbm:nodes=10000,edges=50000,features=2"), grid(60)
    assert cut_of(blocks, clusters=0, passes=10) < 0.7 * cut_of(blocks, clusters=0, passes=1)
    assert cut_of(mesh) < 0.7 * cut_of(mesh, clusters=0)


def test_readers_vote_where_arcs_go_one_way(monkeypatch):
    """Half of the nodes only have arcs to others, so only the votes tell them about these."""
    graph = load("sbm:nodes=10000,edges=20000,features=2,directed=1")
    heard = quality(graph, Fennel().assign(graph, 4, seed=0)).edge_cut
    monkeypatch.setattr(fennel_loops, "lopsided", lambda *_: 0)
    assert heard < 0.4 * quality(graph, Fennel().assign(graph, 4, seed=0)).edge_cut


def test_direction_is_known_without_a_transpose(make_graph):
    for seed in range(20):
        graph = make_graph(seed, weighted=False)
        again = graph_of(both_ways(graph.edge_index), graph.num_nodes)
        assert fennel._Rows(graph, None, 1.0).directed == (not graph.is_symmetric())
        assert not fennel._Rows(again, None, 1.0).directed


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_pass_is_the_rule_of_the_docstring(monkeypatch, lanes):
    """A plain loop over dense counts makes the same moves, in the same order, with the same ties.

    A lane knows its own moves at once, and those of other lanes after a round.
    """
    monkeypatch.setattr(fennel, "ROUNDS", 4)
    graph = load("sbm:nodes=300,edges=1500,features=2,directed=0")
    n, parts = graph.num_nodes, 3
    rows = fennel._Rows(graph, None, 1.0, lanes=lanes)
    part = (np.arange(n) % parts).astype(np.int32)
    mine, weight = part.copy(), np.maximum(1, np.rint(weights(graph) * 1000 / weights(graph).mean()))
    fennel._Sweep(rows, part, parts).run(room=1.3)

    cap, unit = 1.3 * weight.sum() / parts, weight.sum() / n
    alpha = graph.num_arcs / 2 * np.sqrt(parts) / n**1.5
    load_p = np.bincount(mine, weight, parts)
    light = [0] * lanes
    assert [len(pieces) for pieces in rows.rounds] == [lanes] * (1 if lanes == 1 else 4)
    for pieces in rows.rounds:
        before, room = mine.copy(), (cap - load_p) / lanes + load_p
        loads = [load_p.copy() for _ in range(lanes)]
        for lane, (first, last) in enumerate(pieces):
            seen, here = before.copy(), loads[lane]
            for i in range(first, last):
                own, w = seen[i], weight[i]
                here[own] -= w
                probe = (i - rows.lanes[lane][0] + 1) % parts
                light[lane] = probe if here[probe] < here[light[lane]] else light[lane]
                near = set(graph.indices[graph.indptr[i] : graph.indptr[i + 1]].tolist()) - {i}
                count = np.bincount(seen[list(near)], minlength=parts)
                score = count - 1.5 * alpha * (w / unit) * np.sqrt(here / unit)
                allowed = [p for p in (own, *seen[sorted(near)], light[lane]) if here[p] + w <= room[p]]
                best = max(allowed, key=lambda p, score=score: score[p])  # the first of equals
                seen[i] = mine[i] = best
                here[best] += w
        load_p = load_p + sum(here - load_p for here in loads)
    np.testing.assert_array_equal(part, mine)


@pytest.mark.parametrize("clusters", [0, 256])
def test_lanes_keep_to_the_limit_and_cores_change_nothing(graph, clusters, monkeypatch):
    """With one core or three, the parts are the same; no part is heavier than it may be."""
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(fennel, "num_cores", lambda cores=cores: cores)
        found.append(Fennel(clusters=clusters, lanes=4).assign(graph, 3, seed=1).part)
    np.testing.assert_array_equal(*found)
    weight = weights(graph)
    mean = weight.sum() / 3
    load = np.bincount(found[0], weight, 3)
    assert load.max() <= max(1.03 * mean, mean + weight.max()) + 0.001 * mean


@pytest.mark.parametrize("directed", [0, 1])
def test_lanes_cut_about_as_many_edges_as_one(monkeypatch, directed):
    """Large graphs get lanes by themselves. On a directed graph, they also pass on votes."""
    graph = load(f"sbm:nodes=20000,edges=100000,features=2,directed={directed}")
    one = quality(graph, Fennel().assign(graph, 4, seed=0)).edge_cut
    monkeypatch.setattr(fennel, "MANY_ARCS", graph.num_arcs - 1)
    monkeypatch.setattr(fennel, "MANY_NODES", graph.num_nodes - 1)
    many = Fennel().assign(graph, 4, seed=0)
    assert (many.part != Fennel(lanes=1).assign(graph, 4, seed=0).part).any()
    assert quality(graph, many).edge_cut < 1.05 * one


def test_seeds_and_runs_of_rows(monkeypatch):
    """Another seed grows other clusters; the number of rows read at a time changes nothing."""
    graph = load("sbm:nodes=5000,edges=30000,features=2")
    one = Fennel().assign(graph, 4, seed=0).part
    assert (one != Fennel().assign(graph, 4, seed=1).part).any()
    monkeypatch.setattr(base, "RUN_ARCS", 1000)
    assert len(list(base.row_runs(graph.indptr))) > 50
    np.testing.assert_array_equal(one, Fennel().assign(graph, 4, seed=0).part)


def test_row_runs_make_up_all_rows(monkeypatch):
    monkeypatch.setattr(base, "RUN_ARCS", 3)
    for degrees in ([0, 0, 9, 0, 1, 2, 0], [0, 0], [5], [1] * 10):
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        runs = list(base.row_runs(indptr))
        assert [row for first, last in runs for row in range(first, last)] == list(range(len(degrees)))


def test_clusters_without_arcs_between_them_are_streamed():
    """Pairs of nodes: every cluster may be whole, and METIS would have nothing to join."""
    left = np.arange(0, 400, 2)
    graph = graph_of(both_ways(np.stack([left, left + 1])), 400)
    found = Fennel(clusters=200).assign(graph, 4, seed=0)
    figures = quality(graph, found)
    assert figures.edge_cut == 0
    assert figures.node_imbalance <= 1.03


@pytest.mark.parametrize("bad", [{"clusters": 5000}, {"passes": 0}, {"imbalance": 0.0}, {"node_weight": -1.0}], ids=str)
def test_options_out_of_range_are_one_line(bad):
    (name,) = bad
    with pytest.raises(InputError, match=f"{name}="):
        Fennel(**bad)


def test_without_numba_it_says_so(make_graph, monkeypatch):
    there = importlib.import_module

    def missing(module, *rest):
        if module == "numba":
            raise ImportError(module)
        return there(module, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match="numba is not installed: run `pip install numba`, or choose another"):
        partition(make_graph(), 2, "fennel")


def peak(graph):
    """Bytes that a partitioner allocates at the same time."""
    Fennel(clusters=64).assign(graph, 4, seed=0)  # loads what is loaded once
    tracemalloc.start()
    try:
        Fennel(clusters=64).assign(graph, 4, seed=0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("directed", [0, 1])
def test_memory_grows_with_nodes_and_not_with_arcs(monkeypatch, directed):
    monkeypatch.setattr(base, "RUN_ARCS", 10_000)
    spec = f"sbm:nodes={{}},edges={{}},features=2,directed={directed}"
    sizes = (50_000, 50_000), (50_000, 500_000), (200_000, 200_000)
    few, many, large = (peak(load(spec.format(*size))) for size in sizes)
    assert many < 1.1 * few
    assert 2 * few < large < 200_000 * (21 if directed else 13)  # bytes a node: a cluster, two parts, votes


def test_arcs_in_a_file_are_read_from_there(tmp_path):
    """A saved graph's arcs are memory-mapped, and partitioned and written like arcs in memory."""
    held = load("sbm:nodes=2000,edges=10000,features=2")
    save_npz(held, tmp_path / "graph.npz")
    mapped = load(str(tmp_path / "graph.npz"))
    assert isinstance(base_of(mapped.indices), np.memmap)
    assert not isinstance(base_of(held.indices), np.memmap)
    parts = [Fennel().assign(graph, 3, seed=0) for graph in (held, mapped)]
    np.testing.assert_array_equal(parts[0].part, parts[1].part)
    manifests = [
        write_parts(tmp_path / f"{k}", g, p) for k, (g, p) in enumerate(zip((held, mapped), parts, strict=True))
    ]
    assert manifests[0].files == manifests[1].files


def base_of(array):
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array


def test_shards_are_written_without_holding_arcs(tmp_path, monkeypatch):
    """For a graph with many arcs, only a few blocks of them are in memory at a time."""
    from fullgraph.partition import layout

    graph = load("sbm:nodes=20000,edges=1000000,features=2,blocks=4")
    found = Random().assign(graph, 2, seed=0)
    monkeypatch.setattr(layout, "BLOCK_ARCS", 10_000)
    tracemalloc.start()
    try:
        write_parts(tmp_path / "shards", graph, found)
        assert tracemalloc.get_traced_memory()[1] < 2 * graph.num_arcs  # one part's arcs alone are that many bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("directed", [0, 1])
def test_metis_is_refused_before_it_starts_where_it_would_not_fit(monkeypatch, directed):
    from fullgraph import resources
    from fullgraph.partition import metis

    graph = load(f"sbm:nodes=2000,edges=20000,features=2,directed={directed}")
    both = 40_000
    monkeypatch.setattr(metis, "metis_parts", lambda *_, **__: pytest.fail("it started"))
    monkeypatch.setattr(resources, "free_memory", lambda: metis.BYTES_PER_ARC * both - 1)
    with pytest.raises(InputError, match=r"METIS needs 6 MB of memory, and 6 MB are free; choose --partitioner fennel"):
        Metis().assign(graph, 4, seed=0)
    Fennel().assign(graph, 4, seed=0)
