import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Adjacency, Structure
from fullgraph.ops.structure import long_rows
from fullgraph.ops.transpose import is_symmetric, transpose, transpose_in_pieces

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


@pytest.fixture
def symmetric(make_structure: MakeStructure, dense: Dense) -> Structure:
    """With duplicates, equally many in both directions."""
    counts = dense(make_structure(25, 25, 80))
    counts = (counts + counts.T).long()
    indptr = torch.tensor([0, *counts.sum(1).cumsum(0)])
    return Structure(indptr, torch.arange(25).repeat(25).repeat_interleave(counts.view(-1)).int(), 25)


def test_a_symmetric_pattern_is_its_own_transpose(symmetric: Structure, dense: Dense) -> None:
    s = symmetric
    weight = torch.randn(s.num_arcs, dtype=torch.float64)
    assert s.T is s
    torch.testing.assert_close(dense(s, Adjacency(s, weight).T.weight), dense(s, weight).T)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_transposing_in_pieces_is_transposing(
    make_structure: MakeStructure, shape: tuple[int, int, int], at_once: int
) -> None:
    s = make_structure(*shape, ascending=False)
    whole = transpose(s.indptr, s.indices, s.num_cols, with_perm=True)
    pieces = transpose_in_pieces(s.indptr, s.indices, s.num_cols, with_perm=True, at_once=at_once)
    for a, b in zip(whole, pieces, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("at_once", [50, 1000])
def test_symmetry_is_seen_without_transposing(symmetric: Structure, at_once: int) -> None:
    """One reversed arc, one reversed copy of two, and rows that do not ascend are all detected."""
    s = symmetric
    assert is_symmetric(s.indptr, s.indices, at_once=at_once)
    assert is_symmetric(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32), at_once=at_once)
    for arc in range(0, s.num_arcs, 7):
        row = int(s.rows[arc])
        first, last = int(s.indptr[row]), int(s.indptr[row + 1])
        for wrong in {(int(s.indices[arc]) + 1) % 25, int(s.indices[first])} - {int(s.indices[arc])}:
            changed = s.indices.clone()
            changed[arc] = wrong
            assert not is_symmetric(s.indptr, changed, at_once=at_once)
            changed[first:last] = changed[first:last].sort().values
            assert not is_symmetric(s.indptr, changed, at_once=at_once)
    turned_round = s.indices.clone()
    longest = int(s.indptr.diff().argmax())
    arcs = slice(int(s.indptr[longest]), int(s.indptr[longest + 1]))
    turned_round[arcs] = turned_round[arcs].flip(0)
    assert not is_symmetric(s.indptr, turned_round, at_once=at_once)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_dropped_matrix_is_freed_at_once(make_structure: MakeStructure, symmetric: Structure) -> None:
    """A matrix and its transpose form no reference cycle, whichever of the two is held."""
    arrays = []
    for s in (make_structure(7, 5, 20), symmetric):
        adj = Adjacency(Structure(s.indptr.clone(), s.indices.clone(), s.num_cols), torch.rand(s.num_arcs))
        arrays += [adj.structure.indices, adj.structure.perm, adj.T.weight, adj.structure.T.indptr, adj.T.T.weight]
        turned = adj.T
        assert turned.T is adj
        assert turned.structure.T is adj.structure
    alive = [weakref.ref(array) for array in arrays]
    del s, adj, turned, arrays
    assert [ref() for ref in alive] == [None] * len(alive)


@pytest.mark.usefixtures("no_collector")
def test_a_transpose_outlives_its_matrix(make_structure: MakeStructure, dense: Dense) -> None:
    """Its own transpose is then sorted, and `perm` fits it."""
    s = make_structure(7, 5, 30, ascending=False)
    weight = torch.randn(30, dtype=torch.float64)
    matrix, turned = dense(s, weight), Adjacency(s, weight).T
    assert turned.structure.perm.numel() == 30  # while the first one lived
    del s
    assert torch.equal(dense(turned.T.structure, turned.T.weight), matrix)
    assert turned.T.T is turned


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_long_rows_are_cut_into_all_of_their_arcs(chunk: int) -> None:
    degree = torch.tensor([0, 3, 20, 0, 8, 9, 1, 100])
    indptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    table = long_rows(indptr, chunk)
    assert torch.equal(table.distinct.long(), (degree > chunk).nonzero().view(-1))
    for k, row in enumerate(table.distinct.tolist()):
        pieces = range(int(table.first[k]), int(table.first[k + 1]))
        assert table.rows[pieces].tolist() == [row] * len(pieces)
        assert table.places[pieces].tolist() == list(range(len(pieces)))
        assert (len(pieces) - 1) * chunk < int(degree[row]) <= len(pieces) * chunk
    assert table.num_pieces == int(table.first[-1])


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
