"""Dense products of many rows equal torch's, gradients too; dropped rows are those of act_dropout."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fullgraph.nn.linear import add_linear, linear
from fullgraph.nn.view import Mapped, RowMap
from fullgraph.ops import Drop, act_dropout, dense_kernels, rows_linear


def operands(rows: int, width: int, out: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(rows, width), (out, width), (out,), (rows, out), (rows, out)]
    return [torch.randn(shape) for shape in shapes]  # x, weight, bias, base, gradient


def close(mine: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> bool:
    return bool((mine.double() - wanted.double()).norm() <= tolerance * wanted.double().norm() + 1e-6)


@pytest.mark.usefixtures("interpreted")
class TestKernels:
    @pytest.mark.parametrize("shape", [(150, 20, 70), (1, 1, 1), (129, 33, 16), (40, 7, 130)])
    @pytest.mark.parametrize("added", [False, True])
    def test_values_and_gradients(self, shape: tuple[int, int, int], added: bool) -> None:
        x, weight, bias, base, grad = operands(*shape)
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias, base)]
        fine = [t.double().requires_grad_() for t in (x, weight, bias, base)]
        y = rows_linear(*leaves[:3], leaves[3] * 1 if added else None)
        wanted = F.linear(*fine[:3]) + (fine[3] if added else 0)
        assert close(y, wanted)
        used = 4 if added else 3
        of = zip(
            torch.autograd.grad(y, leaves[:used], grad), torch.autograd.grad(wanted, fine[:used], grad.double()),
            strict=True,
        )  # fmt: skip
        assert all(close(mine, theirs) for mine, theirs in of)

    def test_dropped_rows(self) -> None:
        x, weight, bias, _, grad = operands(200, 37, 20)
        ids = torch.randperm(1000)[:200]
        leaves = [t.requires_grad_() for t in (weight, bias)]
        dropped = act_dropout(x, ids, key=11, p=0.4, act="none")
        mine = rows_linear(x, *leaves, None, Drop(ids, 11, 0.4))
        wanted = F.linear(dropped.double(), weight.double(), bias.double())
        assert close(mine, wanted)
        of_weight, of_bias = torch.autograd.grad(mine, leaves, grad)
        assert close(of_weight, grad.double().t() @ dropped.double())
        assert close(of_bias, grad.double().sum(0))

    @pytest.mark.parametrize("rest", [1.0, float("nan")])
    def test_rows_inside_wider_ones(self, rest: float) -> None:
        """Memory after a row that is read with it does not change the result."""
        x, weight, bias, _, grad = operands(70, 13, 20)
        wide, ids = torch.full((70, 16), rest), torch.randperm(100)[:70]
        wide[:, :13] = x
        leaves = [t.requires_grad_() for t in (weight, bias)]
        for drop in (None, Drop(ids, 11, 0.4)):
            found = []
            for rows in (x, wide[:, :13]):
                y = rows_linear(rows, *leaves, None, drop)
                found.append((y, *torch.autograd.grad(y, leaves, grad)))
            assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
        assert torch.equal(*(act_dropout(rows, ids, key=3, p=0.5, act="none") for rows in (x, wide[:, :13])))

    def test_layers_use_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, weight, bias, base, _ = operands(50, 12, 9)
        mapped = Mapped(x, torch.arange(50), RowMap(p=0.5, key=3))
        wanted = F.linear(mapped.whole(), weight, bias)
        for wrong in ("torch.nn.functional.linear", "torch.Tensor.addmm_", "torch.addmm"):
            monkeypatch.setattr(wrong, None)
        assert close(linear(mapped, weight, bias), wanted)
        assert close(add_linear(base.clone(), x, weight), base + x @ weight.t())
        assert close(linear(x, weight), x @ weight.t())

    def test_rounded_products_are_left_to_torch(self) -> None:
        x = torch.randn(3, 4)
        assert dense_kernels(x) is not None
        torch.set_float32_matmul_precision("high")
        try:
            assert dense_kernels(x) is None
        finally:
            torch.set_float32_matmul_precision("highest")
        assert dense_kernels(x.double()) is None
        assert dense_kernels(x.bfloat16()) is None
        assert dense_kernels(torch.randn(3, 8).bfloat16(), drop=True) is not None
        assert dense_kernels(torch.randn(3, 7), drop=True) is None  # rows that begin at odd places


def test_without_triton_torch_multiplies() -> None:
    assert dense_kernels(torch.randn(3, 4)) is None
