"""Laws of row packing, and of the chunks the kernels run over."""

import pytest
import torch

from fullgraph.ops import add_rows, gather_rows
from fullgraph.ops.parallel import balanced_cuts, even_cuts, run


@pytest.mark.usefixtures("backend", "two_threads")
class TestRows:
    @pytest.mark.parametrize("width", [0, 1, 7, 128])
    @pytest.mark.parametrize("count", [0, 1, 3000])
    def test_adding_is_the_adjoint_of_gathering(self, dtype: torch.dtype, width: int, count: int) -> None:
        rows = torch.randperm(4000)[:count]
        x, y = torch.randn(4000, width, dtype=dtype), torch.randn(count, width, dtype=dtype)
        out = torch.zeros_like(x)
        add_rows(out, rows, y)
        torch.testing.assert_close((out * x).sum(), (y * gather_rows(x, rows)).sum())
        untouched = torch.ones(4000, dtype=torch.bool).index_fill_(0, rows, False)
        assert not out[untouched].any()

    def test_a_strided_block_is_updated_in_place(self) -> None:
        wide = torch.zeros(4, 6)
        add_rows(wide[:, ::2], torch.tensor([2, 0]), torch.ones(2, 3))
        assert wide.sum() == 6
        assert not wide[:, 1::2].any()

    def test_int32_rows(self) -> None:
        out = torch.zeros(4, 2)
        add_rows(out, torch.tensor([3, 1], dtype=torch.int32), torch.ones(2, 2))
        assert out.sum(1).tolist() == [0, 2, 0, 2]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
def test_chunks_cover_every_row_once(chunks: int) -> None:
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(0, 9, (50,)).cumsum(0)]).numpy()
    for cuts in (even_cuts(50, chunks), balanced_cuts(indptr, chunks)):
        seen = torch.zeros(50)

        def visit(first: int, last: int, seen: torch.Tensor = seen) -> None:
            seen[first:last] += 1

        run(visit, cuts)
        assert torch.equal(seen, torch.ones(50))


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_chunk_reaches_the_caller() -> None:
    def fail(first: int, last: int) -> None:
        raise ArithmeticError(f"rows {first} to {last}")

    with pytest.raises(ArithmeticError):
        run(fail, even_cuts(100, 16))
