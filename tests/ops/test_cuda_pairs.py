"""Attention that compares rows, maxima and gated sums on a GPU are what they are on a CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.ops import Structure, arc_max, attend_pairs, gated_sum
from tests.ops import test_gates, test_pairs

pytestmark = pytest.mark.gpu
ERROR = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 2e-2}
Call = Callable[[Structure, dict[str, Tensor]], Tensor]


@pytest.fixture(params=["short rows", "a hub"])
def structure(request: pytest.FixtureRequest) -> Structure:
    degree = (torch.rand(5_000) ** -0.7 * 8 - 8).long().clamp_(max=3_000)
    if request.param == "a hub":
        degree[7] = 20_000
    indptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    return Structure(indptr, (torch.rand(int(indptr[-1])) ** 3 * 4_000).int(), 4_000)


def check(call: Call, s: Structure, made: dict[str, Tensor], dtype: torch.dtype) -> None:
    """In this type on the device, twice with the same bits, beside float64 on the CPU."""
    there = {n: t.detach().cuda().to(dtype).requires_grad_(t.requires_grad) for n, t in made.items()}
    exact = {n: t.detach().cpu().double().requires_grad_(t.requires_grad) for n, t in there.items()}
    on_device = s.to("cuda")
    first, second = (test_pairs.results(lambda: call(on_device, there), there) for _ in range(2))
    wanted = test_pairs.results(lambda: call(s, exact), exact)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        error = (value.cpu().double() - wanted[name]).norm() / wanted[name].norm()
        assert error < ERROR[dtype], name


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("arcs", [False, True], ids=["plain", "arcs"])
@pytest.mark.parametrize("kind", test_pairs.KINDS)
def test_attention(structure: Structure, kind: str, arcs: bool, dtype: torch.dtype) -> None:
    made = test_pairs.operands(structure, kind, 2, 32, torch.float64, arcs=arcs)
    check(lambda s, t: attend_pairs(s, **t), structure, made, dtype)


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("form", test_gates.FORMS)
def test_gated_sums(structure: Structure, form: str, dtype: torch.dtype) -> None:
    act = test_gates.FORMS[form][0]
    made = test_gates.operands(structure, form, 24, 4, torch.float64)
    check(lambda s, t: gated_sum(s, act=act, **t), structure, made, dtype)


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("width", [1, 41, 128])
def test_maxima(structure: Structure, width: int, dtype: torch.dtype) -> None:
    made = {"x": torch.randint(-40, 40, (structure.num_cols, width)).double().requires_grad_()}  # exact in all types
    check(lambda s, t: arc_max(s, t["x"]), structure, made, dtype)
