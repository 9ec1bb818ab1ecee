"""Laws of attention over arcs, for all implementations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Structure, attend, edge_scores, edge_softmax, spmm_heads

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
def test_gradients(make_structure: MakeStructure, backend: str, ascending: bool) -> None:
    fast = backend == "triton"
    n, m, e = (3, 4, 7) if fast else (6, 5, 14)
    s = make_structure(n, m, e, ascending=ascending)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda r, c: edge_scores(s, r, c), (leaf(n, 2), leaf(m, 2)), fast_mode=fast)
    assert torch.autograd.gradcheck(lambda e: edge_softmax(s, e), leaf(e, 2), fast_mode=fast)
    assert torch.autograd.gradcheck(lambda a, x: spmm_heads(s, a, x), (leaf(e, 2), leaf(m, 2, 3)), fast_mode=fast)
    leaves = (leaf(n, 2), leaf(m, 2), leaf(m, 2, 3))
    assert torch.autograd.gradcheck(lambda r, c, x: attend(s, r, c, x), leaves, fast_mode=fast)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_gradients_of_empty_shapes(make_structure: MakeStructure, shape: tuple[int, int, int]) -> None:
    s = make_structure(*shape)
    row, col = torch.randn(s.num_rows, 2, requires_grad=True), torch.randn(s.num_cols, 2, requires_grad=True)
    x = torch.randn(s.num_cols, 2, 3, requires_grad=True)
    for y in (spmm_heads(s, edge_softmax(s, edge_scores(s, row, col)), x), attend(s, row, col, x)):
        assert y.shape == (s.num_rows, 2, 3)
        for leaf, grad in zip((row, col, x), torch.autograd.grad(y.sum(), (row, col, x)), strict=True):
            assert grad.shape == leaf.shape
            assert grad.isfinite().all()


@pytest.mark.parametrize("block", [(1, 1), (2, 7), (4, 16)])
def test_attention_is_its_three_steps(
    make_structure: MakeStructure, dense: Dense, dtype: torch.dtype, block: tuple[int, int]
) -> None:
    s = make_structure(20, 15, 70)
    row, col, x = (torch.randn(*shape, dtype=dtype) for shape in ((20, block[0]), (15, block[0]), (15, *block)))
    y = attend(s, row, col, x)
    scores = torch.nn.functional.leaky_relu(row[s.rows] + col[s.indices.long()], 0.2)
    for h in range(block[0]):
        weight = dense(s, scores[:, h].exp())
        close(y[:, h], weight @ x[:, h] / weight.sum(1, keepdim=True).clamp(min=1e-30))


def test_finer_scores_than_rows(make_structure: MakeStructure, backend: str) -> None:
    """bfloat16 rows and float32 scores: the softmax is as precise as in float32."""
    if backend == "numba":
        pytest.skip("numba has no half types")
    s = make_structure(12, 9, 40)
    row, col, x = torch.randn(12, 2), torch.randn(9, 2), torch.randn(9, 2, 5).bfloat16()
    wanted = attend(s, row, col, x.float())
    y = attend(s, row, col, x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), wanted, atol=0.02, rtol=0.02)


@pytest.mark.usefixtures("two_threads")
def test_reruns_give_the_same_bits(make_structure: MakeStructure, backend: str, dtype: torch.dtype) -> None:
    rows, cols, arcs = (8, 6, 40) if backend == "triton" else (2000, 1500, 20_000)
    s = make_structure(rows, cols, arcs)
    row, col = torch.randn(rows, 4, dtype=dtype), torch.randn(cols, 4, dtype=dtype)
    x = torch.randn(cols, 4, 16, dtype=dtype, requires_grad=True)

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
