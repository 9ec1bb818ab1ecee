"""Laws of the sparse-dense product, for both implementations."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Adjacency, Structure, spmm

MakeStructure = Callable[..., Structure]
Dense = Callable[..., Tensor]

WIDTHS = [1, 7, 41, 64, 100, 128, 256, 602]
SHAPES = [(0, 0, 0), (0, 5, 0), (5, 0, 0), (6, 4, 0), (1, 1, 3), (30, 20, 101)]
PARTS = ["", "w", "r", "c", "rc", "wrc"]


def adjacency(s: Structure, parts: str, dtype: torch.dtype) -> Adjacency:
    sizes = {"w": s.num_arcs, "r": s.num_rows, "c": s.num_cols}
    w, r, c = (torch.randn(n, dtype=dtype) if name in parts else None for name, n in sizes.items())
    return Adjacency(s, w, r, c)


def matrix(dense: Dense, adj: Adjacency, dtype: torch.dtype) -> Tensor:
    m = dense(adj.structure, adj.weight, dtype)
    m = m if adj.row_scale is None else adj.row_scale[:, None] * m
    return m if adj.col_scale is None else m * adj.col_scale


def close(a: Tensor, b: Tensor) -> None:
    tolerance = 1e-4 if a.dtype == torch.float32 else 1e-11
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("backend")
class TestProduct:
    @pytest.mark.parametrize("parts", PARTS)
    @pytest.mark.parametrize("width", WIDTHS)
    def test_equals_the_dense_product(
        self, make_structure: MakeStructure, dense: Dense, dtype: torch.dtype, parts: str, width: int
    ) -> None:
        adj = adjacency(make_structure(50, 40, 300), parts, dtype)
        x, base = torch.randn(40, width, dtype=dtype), torch.randn(50, width, dtype=dtype)
        wanted = matrix(dense, adj, dtype) @ x
        close(spmm(adj, x), wanted)
        before = base.clone()
        result = spmm(adj, x, base)
        assert result.data_ptr() == base.data_ptr()
        close(base, before + wanted)

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("width", [0, 1, 5])
    def test_empty_shapes(
        self, make_structure: MakeStructure, dense: Dense, shape: tuple[int, int, int], width: int
    ) -> None:
        adj = adjacency(make_structure(*shape), "wrc", torch.float64)
        x = torch.randn(shape[1], width, dtype=torch.float64, requires_grad=True)
        y = spmm(adj, x)
        close(y, matrix(dense, adj, torch.float64) @ x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad.shape == x.shape
        close(spmm(adj, x.detach(), torch.ones_like(y)), y.detach() + 1)

    @pytest.mark.parametrize("ascending", [True, False])
    def test_adjoint(self, make_structure: MakeStructure, dtype: torch.dtype, ascending: bool) -> None:
        adj = adjacency(make_structure(60, 45, 500, ascending=ascending), "wrc", dtype)
        x, y = torch.randn(45, 9, dtype=dtype), torch.randn(60, 9, dtype=dtype)
        close((spmm(adj, x) * y).sum(), (x * spmm(adj.T, y)).sum())
        close(spmm(adj.T.T, x), spmm(adj, x))

    @pytest.mark.parametrize("parts", ["", "wrc"])
    def test_gradients(self, make_structure: MakeStructure, parts: str) -> None:
        adj = adjacency(make_structure(7, 5, 20), parts, torch.float64)
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        base = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda a: spmm(adj, a), x)
        assert torch.autograd.gradcheck(lambda a, b: spmm(adj, a, b.clone()), (x, base))
        assert torch.autograd.gradgradcheck(lambda a: spmm(adj, a), x)

    def test_strided_operands(self, make_structure: MakeStructure, dense: Dense) -> None:
        adj = adjacency(make_structure(6, 6, 20), "w", torch.float64)
        m = matrix(dense, adj, torch.float64)
        x, wide = torch.randn(4, 6, dtype=torch.float64).T, torch.zeros(6, 8, dtype=torch.float64)
        close(spmm(adj, x), m @ x)
        spmm(adj, x, wide[:, ::2])
        close(wide[:, ::2], m @ x)
        assert not wide[:, 1::2].any()
        block = torch.randn(6, 4, dtype=torch.float64)
        wanted = block + m @ block
        close(spmm(adj, block, block), wanted)

    def test_the_weights_get_no_gradient(self, make_structure: MakeStructure) -> None:
        weight = torch.rand(10, requires_grad=True)
        adj = Adjacency(make_structure(4, 4, 10), weight)
        assert not spmm(adj, torch.ones(4, 2)).requires_grad

    def test_a_nan_reaches_the_rows_that_read_it_and_no_other(
        self, make_structure: MakeStructure, dense: Dense, dtype: torch.dtype
    ) -> None:
        s = make_structure(30, 20, 60)
        x = torch.ones(20, 33, dtype=dtype)
        x[3] = torch.nan
        reads = dense(s)[:, 3] > 0
        assert torch.equal(spmm(Adjacency(s), x).isnan(), reads[:, None].expand(-1, 33))

    @pytest.mark.usefixtures("two_threads")
    def test_reruns_and_thread_counts_give_the_same_bits(
        self, make_structure: MakeStructure, dtype: torch.dtype
    ) -> None:
        adj = adjacency(make_structure(3000, 2000, 20_000), "wrc", dtype)
        x = torch.randn(2000, 33, dtype=dtype)
        first = spmm(adj, x)
        assert torch.equal(first, spmm(adj, x))
        torch.set_num_threads(1)
        assert torch.equal(first, spmm(adj, x))

    @pytest.mark.usefixtures("two_threads")
    def test_simulated_ranks_call_at_once(self, make_structure: MakeStructure) -> None:
        adj = [adjacency(make_structure(2000, 2000, 20_000, seed=k), "wrc", torch.float32) for k in range(4)]
        x = torch.randn(2000, 64, requires_grad=True)

        def both(k: int) -> tuple[Tensor, Tensor]:
            y = spmm(adj[k], x)
            return y, torch.autograd.grad(y.square().sum(), x)[0]

        alone = [both(k) for k in range(4)]
        wrong: list[int] = []

        def rank(k: int) -> None:
            for _ in range(5):
                wrong.extend(k for a, b in zip(both(k), alone[k], strict=True) if not torch.equal(a, b))

        ranks = [threading.Thread(target=rank, args=(k,)) for k in range(4)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
        assert wrong == []


def test_implementations_agree(
    make_structure: MakeStructure, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    adj = adjacency(make_structure(500, 400, 8000), "wrc", dtype)
    x = torch.randn(400, 37, dtype=dtype)
    monkeypatch.setenv("FULLGRAPH_KERNELS", "numba")
    fast = spmm(adj, x)
    monkeypatch.setenv("FULLGRAPH_KERNELS", "torch")
    close(fast, spmm(adj, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_take_the_reference(make_structure: MakeStructure, dense: Dense, dtype: torch.dtype) -> None:
    adj = adjacency(make_structure(20, 15, 60), "wrc", torch.float32)
    x = torch.randn(15, 8)
    wanted = matrix(dense, adj, torch.float32) @ x
    torch.testing.assert_close(spmm(adj.to(dtype), x.to(dtype)).float(), wanted, atol=0.3, rtol=0.1)


def test_wrong_operands_are_refused(make_structure: MakeStructure, monkeypatch: pytest.MonkeyPatch) -> None:
    adj = adjacency(make_structure(4, 3, 6), "w", torch.float32)
    for x, base in [
        (torch.ones(4, 2), None),
        (torch.ones(3), None),
        (torch.ones(3, 2, dtype=torch.float64), None),
        (torch.ones(3, 2), torch.ones(3, 2)),
        (torch.ones(3, 2), torch.ones(4, 2, dtype=torch.float64)),
    ]:
        with pytest.raises(InputError):
            spmm(adj, x, base)
    monkeypatch.setenv("FULLGRAPH_KERNELS", "fortran")
    with pytest.raises(InputError, match="numba or torch"):
        spmm(adj, torch.ones(3, 2))
