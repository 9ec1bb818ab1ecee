"""Subsets of ranks: a mesh names them, SubTransport renumbers them, a fork lets pairs communicate."""

import pytest
import torch

from fullgraph.errors import InputError
from fullgraph.plan import HopRoute
from fullgraph.testing import adjoint_pair, run_processes, run_threads
from fullgraph.transport import Key, Mesh, SubTransport


def test_a_mesh_numbers_its_last_axis_fastest():
    mesh = Mesh(stage=3, way=2)
    assert [mesh.at(rank) for rank in (0, 1, 5)] == [
        {"way": 0, "stage": 0},
        {"way": 1, "stage": 0},
        {"way": 1, "stage": 2},
    ]
    assert all(mesh.rank(**mesh.at(rank)) == rank for rank in range(len(mesh)))
    assert mesh.along("way", 3) == [2, 3]
    assert mesh.along("stage", 3) == [1, 3, 5]


@pytest.mark.parametrize(("given", "sizes"), [((2, 0), (3, 2)), ((0, 3), (3, 2)), ((2, 3), (3, 2)), ((6, 0), (1, 6))])
def test_ways_and_stages_decide_one_another(given, sizes):
    mesh = Mesh.of(6, ways=given[0], stages=given[1])
    assert (mesh.sizes["stage"], mesh.sizes["way"]) == sizes


def test_a_mesh_that_is_not_all_ranks_is_refused():
    with pytest.raises(InputError, match="ways=4 does not divide 6 ranks; choose ways from 1, 2, 3, 6"):
        Mesh.of(6, ways=4, stages=0)


def in_pairs(transport):
    """Pairs (0, 2) and (1, 3) over a fork, with another order of keys on each: received rows, and sums."""
    fork = transport.fork()
    pair = SubTransport(fork, [transport.rank % 2, transport.rank % 2 + 2])
    other = 1 - pair.rank
    keys = [Key("a", 0), Key("b", 0)][:: 1 if transport.rank % 2 else -1]
    sent = torch.tensor([transport.rank, 7], dtype=torch.uint8)
    come = [pair.begin(key, {other: sent}, {other: 2}) for key in keys]
    total = pair.all_reduce(Key("sum", 0), torch.full((2, 2), 1.0 + transport.rank)).wait()
    return [message.wait()[other].tolist() for message in come], total


@pytest.mark.parametrize("run", [run_threads, run_processes])
def test_ranks_talk_in_pairs(run):
    for rank, (come, total) in enumerate(run(4, in_pairs)):
        assert come == [[(rank + 2) % 4, 7]] * 2
        assert torch.equal(total, torch.full((2, 2), 2.0 + 2 * (rank % 2) + 2))


def hop(transport, rows):
    return adjoint_pair(transport, HopRoute(transport.rank, rows), rows if transport.rank == 0 else 0)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_hop_is_the_identity_between_two_ranks(rows):
    for left, right in run_threads(2, hop, rows):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
    route = HopRoute(0, rows)
    assert route == route.T.T
