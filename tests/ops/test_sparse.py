"""Laws of the sparse-dense product, for all implementations."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Adjacency, Structure, spmm
from fullgraph.ops.reference import csr_product

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


def agrees_with_the_dense_product(adj: Adjacency, dense: Dense, width: int, dtype: torch.dtype) -> None:
    x, base = torch.randn(adj.shape[1], width, dtype=dtype), torch.randn(adj.shape[0], width, dtype=dtype)
    wanted = matrix(dense, adj, dtype) @ x
    close(spmm(adj, x), wanted)
    before = base.clone()
    result = spmm(adj, x, base)
    assert result.data_ptr() == base.data_ptr()
    close(base, before + wanted)


@pytest.mark.parametrize("backend", ["numba", "torch"], indirect=True)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_equals_the_dense_product(
    make_structure: MakeStructure, dense: Dense, backend: str, dtype: torch.dtype, parts: str, width: int
) -> None:
    agrees_with_the_dense_product(adjacency(make_structure(50, 40, 300), parts, dtype), dense, width, dtype)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("parts", ["", "wrc"])
@pytest.mark.parametrize("width", [1, 7, 41, 100])
def test_equals_the_dense_product_in_triton(
    make_structure: MakeStructure, dense: Dense, dtype: torch.dtype, parts: str, width: int
) -> None:
    agrees_with_the_dense_product(adjacency(make_structure(6, 5, 60), parts, dtype), dense, width, dtype)


@pytest.mark.usefixtures("backend")
class TestProduct:
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
    def test_adjoint(self, make_structure: MakeStructure, backend: str, dtype: torch.dtype, ascending: bool) -> None:
        rows, cols, arcs = (12, 9, 80) if backend == "triton" else (60, 45, 500)
        adj = adjacency(make_structure(rows, cols, arcs, ascending=ascending), "wrc", dtype)
        x, y = torch.randn(cols, 9, dtype=dtype), torch.randn(rows, 9, dtype=dtype)
        close((spmm(adj, x) * y).sum(), (x * spmm(adj.T, y)).sum())
        close(spmm(adj.T.T, x), spmm(adj, x))

    @pytest.mark.parametrize("parts", ["", "wrc"])
    def test_gradients(self, make_structure: MakeStructure, backend: str, parts: str) -> None:
        adj = adjacency(make_structure(7, 5, 20), parts, torch.float64)
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        base = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
        fast = backend == "triton"
        assert torch.autograd.gradcheck(lambda a: spmm(adj, a), x, fast_mode=fast)
        assert torch.autograd.gradcheck(lambda a, b: spmm(adj, a, b.clone()), (x, base), fast_mode=fast)
        assert torch.autograd.gradgradcheck(lambda a: spmm(adj, a), x, fast_mode=fast)

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
        self, make_structure: MakeStructure, backend: str, dtype: torch.dtype
    ) -> None:
        rows, cols, arcs = (16, 12, 90) if backend == "triton" else (3000, 2000, 20_000)
        adj = adjacency(make_structure(rows, cols, arcs), "wrc", dtype)
        x = torch.randn(cols, 33, dtype=dtype)
        first = spmm(adj, x)
        assert torch.equal(first, spmm(adj, x))
        torch.set_num_threads(1)
        assert torch.equal(first, spmm(adj, x))

    @pytest.mark.usefixtures("two_threads")
    def test_simulated_ranks_call_at_once(self, make_structure: MakeStructure, backend: str) -> None:
        if backend == "triton":
            pytest.skip("Triton's interpreter changes its modules while it runs, so it has one thread")
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
def test_half_types_are_summed_in_float32(make_structure: MakeStructure, dense: Dense, dtype: torch.dtype) -> None:
    adj = adjacency(make_structure(20, 15, 600), "wrc", torch.float32)
    x = torch.randn(15, 8).to(dtype)
    wanted = matrix(dense, adj, torch.float32) @ x.float()
    y = spmm(adj, x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), wanted, atol=1e-3, rtol=torch.finfo(dtype).eps)
    torch.testing.assert_close(spmm(adj.to(dtype), x).float(), wanted, atol=0.3, rtol=0.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_fallback_of_a_gpu_multiplies_blocks_of_rows(
    make_structure: MakeStructure, dense: Dense, weighted: bool
) -> None:
    s, x = make_structure(50, 40, 300), torch.randn(40, 9, dtype=torch.float64)
    weight = torch.randn(300, dtype=torch.float64) if weighted else None
    for arcs_at_once in (40, 299, 300):
        close(csr_product(s, weight, x, arcs_at_once), dense(s, weight) @ x)


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
    with pytest.raises(InputError, match="numba, torch or triton"):
        spmm(adj, torch.ones(3, 2))
