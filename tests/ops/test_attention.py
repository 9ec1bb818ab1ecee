"""Laws of attention over arcs, for both implementations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Structure, edge_scores, edge_softmax, spmm_heads

MakeStructure = Callable[..., Structure]
Dense = Callable[..., Tensor]

pytestmark = pytest.mark.usefixtures("backend")
SHAPES = [(0, 0, 0), (0, 5, 0), (5, 0, 0), (6, 4, 0), (1, 1, 3), (30, 20, 101)]


def close(a: Tensor, b: Tensor) -> None:
    tolerance = 1e-5 if a.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("heads", [1, 3])
def test_scores(make_structure: MakeStructure, dtype: torch.dtype, shape: tuple[int, int, int], heads: int) -> None:
    s = make_structure(*shape)
    row, col = torch.randn(s.num_rows, heads, dtype=dtype), torch.randn(s.num_cols, heads, dtype=dtype)
    assert torch.equal(edge_scores(s, row, col), row[s.rows] + col[s.indices.long()])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("heads", [1, 3])
def test_softmax(make_structure: MakeStructure, dtype: torch.dtype, shape: tuple[int, int, int], heads: int) -> None:
    s = make_structure(*shape)
    scores = torch.randn(s.num_arcs, heads, dtype=dtype)
    alpha = edge_softmax(s, scores)
    for i in range(s.num_rows):
        arcs = slice(int(s.indptr[i]), int(s.indptr[i + 1]))
        close(alpha[arcs], scores[arcs].softmax(0))


def test_softmax_stands_large_scores(make_structure: MakeStructure, dtype: torch.dtype) -> None:
    s = make_structure(20, 20, 100)
    scores = torch.randn(100, 2, dtype=dtype)
    shift = 1e4 * torch.randn(20, 2, dtype=dtype)[s.rows].round()
    tolerance = 1e-2 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(edge_softmax(s, scores + shift), edge_softmax(s, scores), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [(1, 1), (2, 7), (4, 16), (3, 0)])
def test_heads_are_products(
    make_structure: MakeStructure,
    dense: Dense,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    block: tuple[int, int],
) -> None:
    s = make_structure(*shape)
    alpha, x = torch.randn(s.num_arcs, block[0], dtype=dtype), torch.randn(s.num_cols, *block, dtype=dtype)
    y = spmm_heads(s, alpha, x)
    assert y.shape == (s.num_rows, *block)
    for h in range(block[0]):
        close(y[:, h], dense(s, alpha[:, h]) @ x[:, h])


@pytest.mark.parametrize("ascending", [True, False])
def test_gradients(make_structure: MakeStructure, ascending: bool) -> None:
    s = make_structure(6, 5, 14, ascending=ascending)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda r, c: edge_scores(s, r, c), (leaf(6, 2), leaf(5, 2)))
    assert torch.autograd.gradcheck(lambda e: edge_softmax(s, e), leaf(14, 2))
    assert torch.autograd.gradcheck(lambda a, x: spmm_heads(s, a, x), (leaf(14, 2), leaf(5, 2, 3)))


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_gradients_of_empty_shapes(make_structure: MakeStructure, shape: tuple[int, int, int]) -> None:
    s = make_structure(*shape)
    row, col = torch.randn(s.num_rows, 2, requires_grad=True), torch.randn(s.num_cols, 2, requires_grad=True)
    x = torch.randn(s.num_cols, 2, 3, requires_grad=True)
    spmm_heads(s, edge_softmax(s, edge_scores(s, row, col)), x).sum().backward()
    for leaf in (row, col, x):
        assert leaf.grad is not None
        assert leaf.grad.shape == leaf.shape
        assert leaf.grad.isfinite().all()


@pytest.mark.usefixtures("two_threads")
def test_reruns_give_the_same_bits(make_structure: MakeStructure, dtype: torch.dtype) -> None:
    s = make_structure(2000, 1500, 20_000)
    row, col = torch.randn(2000, 4, dtype=dtype), torch.randn(1500, 4, dtype=dtype)
    x = torch.randn(1500, 4, 16, dtype=dtype, requires_grad=True)

    def both() -> tuple[Tensor, Tensor]:
        y = spmm_heads(s, edge_softmax(s, edge_scores(s, row, col)), x)
        return y, torch.autograd.grad(y.square().sum(), x)[0]

    for first, second in zip(both(), both(), strict=True):
        assert torch.equal(first, second)


def test_wrong_operands_are_refused(make_structure: MakeStructure) -> None:
    s = make_structure(4, 3, 6)
    with pytest.raises(InputError):
        edge_scores(s, torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(InputError):
        edge_scores(s, torch.ones(4, 2), torch.ones(3, 2).double())
    with pytest.raises(InputError):
        edge_softmax(s, torch.ones(5, 2))
    with pytest.raises(InputError):
        spmm_heads(s, torch.ones(6, 2), torch.ones(3, 3, 4))
