"""Clusters of rows: they find planted communities, keep their size limit, and are the same every time."""

import numpy as np
import pytest
import torch

from fullgraph.data.sbm import SBM, sbm_graph
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement import RankGraph
from fullgraph.placement.holding import locality
from fullgraph.placement.holding.adjacency import Arcs

NEAR = 40


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"MIN_ROWS": 0, "NEAR": NEAR}.items():
        monkeypatch.setattr(locality, name, value)


def arcs_of(graph, part=None):
    """The arcs of rank 0."""
    part = np.zeros(graph.num_nodes, np.int32) if part is None else part
    assignment = Assignment(part=part, parts=int(part.max()) + 1, method="case", seed=0)
    return RankGraph.of_part(cut_parts(graph, assignment, 0), torch.float32).arcs


def from_edges(num_owned, num_halo, source, target):
    target, order = torch.as_tensor(target).sort(stable=True)
    indptr = torch.nn.functional.pad(torch.bincount(target, minlength=num_owned).cumsum(0), (1, 0))
    return Arcs(indptr, torch.as_tensor(source)[order].int(), None, num_halo)


def planted(**options):
    """Blocks of 50 rows in random order, and the place of every row if blocks were contiguous."""
    graph = sbm_graph(SBM(nodes=2000, edges=16_000, blocks=40, classes=40, p_in=0.8, features=8, **options))
    return graph, locality.places(torch.argsort(torch.tensor(graph.y), stable=True))


def is_order(order_n, n):
    return torch.equal(order_n.sort().values, torch.arange(n))


def test_planted_communities_are_found():
    graph, by_block_n = planted()
    arcs = arcs_of(graph)
    given = locality.near_share(arcs, torch.arange(2000))
    best = locality.near_share(arcs, by_block_n)
    order_n = locality.local_order(arcs)
    assert is_order(order_n, 2000)
    found = locality.near_share(arcs, locality.places(order_n))
    assert given < 0.06 < 0.75 < best
    assert found > 0.8 * best


def test_communities_larger_than_the_limit_stay_together():
    graph, by_block_n = planted()
    arcs, limit = arcs_of(graph), 20
    sizes = torch.bincount(locality.clusters(arcs, torch.ones(2000, dtype=torch.int64), limit))
    assert int(sizes.max()) == limit
    found = locality.near_share(arcs, locality.places(locality.clustered(arcs, limit=limit)))
    assert found > 0.7 * locality.near_share(arcs, by_block_n)


def test_the_order_does_not_depend_on_pieces_and_is_the_same_every_time(monkeypatch):
    arcs = arcs_of(planted()[0])
    once = locality.clustered(arcs)
    assert torch.equal(locality.clustered(arcs), once)
    for votes in (61 * locality.VOTES, 10_000):
        monkeypatch.setattr(locality, "VOTES_AT_ONCE", votes)
        assert torch.equal(locality.clustered(arcs), once)


def test_a_local_order_is_kept():
    graph, by_block_n = planted()
    arcs = arcs_of(graph).reordered(torch.argsort(by_block_n))
    assert locality.near_share(arcs, torch.arange(2000)) > locality.LOCAL
    assert locality.local_order(arcs) is None


def test_a_graph_without_communities_keeps_its_order(monkeypatch):
    monkeypatch.setattr(locality, "NEAR", 500)
    source, target = torch.randint(0, 2000, (2, 100_000), generator=torch.Generator().manual_seed(0))
    arcs = from_edges(2000, 0, source, target)
    assert locality.near_share(arcs, torch.arange(2000)) < locality.LOCAL
    assert locality.local_order(arcs) is None


def test_where_an_order_is_looked_for(monkeypatch):
    monkeypatch.undo()
    assert locality.worth_a_look(10**6, torch.device("cuda"))
    assert not locality.worth_a_look(10**4, torch.device("cuda"))
    assert locality.worth_a_look(10**6, torch.device("cpu"))
    assert not locality.worth_a_look(10**6, torch.device("meta"))


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_graphs_without_arcs(rows):
    arcs = from_edges(rows, 0, [], torch.zeros(0, dtype=torch.int64))
    assert torch.equal(locality.clustered(arcs), torch.arange(rows))
    assert locality.local_order(arcs) is None


def test_rows_that_read_only_a_halo_stay_in_their_order():
    arcs = from_edges(5, 3, [5, 6, 7, 5], [0, 1, 1, 4])
    assert torch.equal(locality.clustered(arcs), torch.arange(5))
    assert locality.local_order(arcs) is None


def test_a_halo_has_no_vote():
    graph, by_block_n = planted()
    half = np.asarray(graph.y) % 2  # whole blocks, so that all arcs from the halo lead out of a block
    arcs = arcs_of(graph, half.astype(np.int32))
    assert arcs.num_halo > 0
    order_n = locality.clustered(arcs)
    assert is_order(order_n, 1000)
    best = locality.near_share(arcs, locality.places(torch.argsort(by_block_n[half == 0])))
    assert locality.near_share(arcs, locality.places(order_n)) > 0.8 * best


def test_hubs_do_not_join_communities():
    """Hubs: a row that all others read, and that reads all others."""
    graph, by_block_n = planted()
    inner = arcs_of(graph)
    others = torch.arange(2000)
    source = torch.cat([inner.indices.long(), torch.full((2000,), 2000), others])
    target = torch.cat([inner.targets(), others, torch.full((2000,), 2000)])
    arcs = from_edges(2001, 0, source, target)
    order_n = locality.clustered(arcs)
    assert is_order(order_n, 2001)
    place_n = torch.nn.functional.pad(by_block_n, (0, 1), value=2000)
    assert locality.near_share(arcs, locality.places(order_n)) > 0.8 * locality.near_share(arcs, place_n)


def test_a_path_falls_into_runs():
    """No direction is favoured: a shuffled path of 3000 rows comes back in runs of neighbours."""
    rows = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    one, other = rows[:-1], rows[1:]
    arcs = from_edges(3000, 0, torch.cat([one, other]), torch.cat([other, one]))
    order_n = locality.clustered(arcs)
    assert is_order(order_n, 3000)
    assert locality.near_share(arcs, locality.places(order_n)) > 0.9
