from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Adjacency, Structure

MakeStructure = Callable[..., Structure]
Dense = Callable[..., Tensor]

SHAPES = [(0, 0, 0), (0, 5, 0), (5, 0, 0), (6, 4, 0), (1, 1, 3), (30, 20, 100), (20, 30, 300)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ascending", [True, False])
def test_the_transpose_is_the_matrix_transpose(
    make_structure: MakeStructure, dense: Dense, shape: tuple[int, int, int], ascending: bool
) -> None:
    s = make_structure(*shape, ascending=ascending)
    weight = torch.randn(s.num_arcs, dtype=torch.float64)
    assert torch.equal(dense(s.T), dense(s).T)
    assert torch.equal(s.perm.sort().values, torch.arange(s.num_arcs, dtype=torch.int32))
    torch.testing.assert_close(dense(s.T, weight[s.perm.long()]), dense(s, weight).T)
    assert s.T.T is s
    torch.testing.assert_close(dense(s, weight[s.perm.long()][s.T.perm.long()]), dense(s, weight))


def test_rows_of_the_transpose_are_ascending(make_structure: MakeStructure) -> None:
    s = make_structure(40, 30, 400, ascending=False)
    key = s.T.rows * s.num_rows + s.T.indices
    assert bool((key.diff() >= 0).all())


def test_a_symmetric_pattern_is_its_own_transpose(make_structure: MakeStructure, dense: Dense) -> None:
    half = dense(make_structure(25, 25, 80))
    indptr = torch.tensor([0, *(half + half.T > 0).sum(1).cumsum(0)])
    s = Structure(indptr, (half + half.T > 0).nonzero()[:, 1].int(), 25)
    weight = torch.randn(s.num_arcs, dtype=torch.float64)
    assert s.T is s
    torch.testing.assert_close(dense(s, Adjacency(s, weight).T.weight), dense(s, weight).T)


def test_scales_swap_and_structures_are_shared(make_structure: MakeStructure) -> None:
    s = make_structure(7, 5, 20)
    adj = Adjacency(s, torch.rand(20), torch.rand(7), torch.rand(5))
    for ours, turned in ((adj.row_scale, adj.T.col_scale), (adj.col_scale, adj.T.row_scale)):
        assert ours is not None
        assert turned is not None
        assert ours.data_ptr() == turned.data_ptr()
    assert adj.T.T is adj
    assert adj.with_weight(None).structure is s
    assert adj.with_weight(torch.rand(20)).T.structure is adj.T.structure
    assert adj.T.shape == (5, 7)
    doubled = adj.to(torch.float64)
    assert doubled.weight is not None
    assert doubled.weight.dtype == torch.float64
    assert doubled.structure is s


@pytest.mark.parametrize(
    ("indptr", "indices", "num_cols"),
    [
        ([0, 2], [0, 5], 5),
        ([0, 2], [0, -1], 5),
        ([0, 1], [0, 1], 5),
        ([1, 2], [0, 1], 5),
        ([0, 2, 1, 2], [0, 1], 5),
        ([0, 1], [2**32], 5),
    ],
)
def test_patterns_that_would_read_outside_memory_are_refused(
    indptr: list[int], indices: list[int], num_cols: int
) -> None:
    with pytest.raises(InputError):
        Structure(torch.tensor(indptr), torch.tensor(indices), num_cols)


def test_a_weight_of_the_wrong_length_is_refused(make_structure: MakeStructure) -> None:
    with pytest.raises(InputError, match="weight"):
        Adjacency(make_structure(4, 4, 6), torch.ones(5))
