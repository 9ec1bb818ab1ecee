"""Layer norm equals its formula in float64, in all types and shapes; only its input is kept."""

import pytest
import torch
from torch import Tensor, nn

from fullgraph.errors import InputError
from fullgraph.nn import LayerNorm
from fullgraph.nn.model import make_norm
from fullgraph.ops import layer_norm


def exact(x: Tensor, weight: Tensor, bias: Tensor, eps: float, grad: Tensor) -> list[Tensor]:
    """The norm and its three gradients, in float64."""
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    y = (leaves[0] - leaves[0].mean(1, keepdim=True)) / (leaves[0].var(1, correction=0, keepdim=True) + eps).sqrt()
    y = y * leaves[1] + leaves[2]
    return [y, *torch.autograd.grad(y, leaves, grad.double())]


def ours(x: Tensor, weight: Tensor, bias: Tensor, eps: float, grad: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = layer_norm(*leaves, eps)
    return [y, *torch.autograd.grad(y, leaves, grad)]


def operands(rows: int, width: int, dtype: torch.dtype, weight_dtype: torch.dtype) -> list[Tensor]:
    x, grad = (3 * torch.randn(rows, width) + 1).to(dtype), torch.randn(rows, width).to(dtype)
    return [x, torch.randn(width).to(weight_dtype), torch.randn(width).to(weight_dtype), grad]


@pytest.mark.usefixtures("backend")
class TestFormula:
    @pytest.mark.parametrize("shape", [(37, 48), (5, 1), (9, 41), (3, 128), (70, 33), (2, 602), (2, 1500), (1, 5000)])
    def test_values_and_gradients(self, dtype: torch.dtype, shape: tuple[int, int]) -> None:
        x, weight, bias, grad = operands(*shape, dtype, dtype)
        x[0] = 2.0  # a row without variance
        precision = 2e-5 if dtype == torch.float32 else 1e-11
        for mine, wanted in zip(ours(x, weight, bias, 1e-3, grad), exact(x, weight, bias, 1e-3, grad), strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.double(), wanted, atol=precision * 5, rtol=precision)

    @pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
    def test_rows_of_half_precision(self, weight_dtype: torch.dtype) -> None:
        x, weight, bias, grad = operands(21, 48, torch.bfloat16, weight_dtype)
        results = zip(ours(x, weight, bias, 1e-5, grad), exact(x, weight, bias, 1e-5, grad), strict=True)
        for (mine, wanted), dtype in zip(
            results, (torch.bfloat16, torch.bfloat16, weight_dtype, weight_dtype), strict=True
        ):
            assert mine.dtype == dtype
            assert (mine.double() - wanted).norm() < 0.01 * wanted.norm()

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
    def test_empty_shapes(self, shape: tuple[int, int]) -> None:
        x, weight, bias, grad = operands(*shape, torch.float32, torch.float32)
        results = ours(x, weight, bias, 1e-5, grad)
        assert [tuple(t.shape) for t in results] == [shape, shape, shape[1:], shape[1:]]
        assert not any(t.abs().sum() for t in results)

    def test_rows_that_are_not_contiguous(self) -> None:
        x, weight, bias, grad = operands(12, 7, torch.float64, torch.float64)
        wanted = ours(x, weight, bias, 1e-5, grad)
        strided = ours(x.T.contiguous().T, weight, bias, 1e-5, grad.T.contiguous().T)
        for mine, other in zip(strided, wanted, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-13, rtol=1e-13)


@pytest.mark.usefixtures("interpreted")
class TestKernels:
    def test_many_tiles_a_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fullgraph.ops.kernels_cuda.NORM_PROGRAMS", 3)
        monkeypatch.setattr("fullgraph.ops.kernels_cuda.NORM_NUMBERS", 16)
        operand = operands(45, 8, torch.float64, torch.float64)  # 23 tiles of 2 rows, the last one half full
        x, weight, bias, grad = operand
        first, again = (ours(x, weight, bias, 1e-5, grad) for _ in range(2))
        for mine, other, wanted in zip(first, again, exact(x, weight, bias, 1e-5, grad), strict=True):
            assert torch.equal(mine, other)
            torch.testing.assert_close(mine, wanted, atol=1e-12, rtol=1e-12)

    def test_only_the_input_is_kept(self) -> None:
        x, weight, bias, _ = (t.requires_grad_() for t in operands(30, 8, torch.float32, torch.float32))
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            layer_norm(x, weight, bias, 1e-5)
        assert [t.data_ptr() for t in kept] == [x.data_ptr(), weight.data_ptr()]


@pytest.mark.usefixtures("backend")
def test_the_module_is_torchs_own_by_another_way() -> None:
    mine, torchs = make_norm("layer", 20), nn.LayerNorm(20)
    assert isinstance(mine, LayerNorm)
    torchs.load_state_dict({name: torch.randn_like(value) for name, value in torchs.state_dict().items()})
    mine.load_state_dict(torchs.state_dict())
    x = torch.randn(7, 20)
    torch.testing.assert_close(mine(x), torchs(x), atol=1e-5, rtol=1e-5)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="layer norm"):
        layer_norm(torch.ones(3, 2), torch.ones(3), torch.ones(3), 1e-5)
