"""Attention that compares rows, and maxima, against their equations written with one row per arc."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from fullgraph.errors import InputError
from fullgraph.ops import Structure, arc_max, arc_min, attend_pairs

MakeStructure = Callable[..., Structure]

pytestmark = pytest.mark.usefixtures("backend")
SHAPES = [(0, 0, 0), (0, 5, 0), (5, 0, 0), (6, 4, 0), (1, 1, 3), (9, 7, 31)]
KINDS = ["gatv2", "dot"]


def equation(s: Structure, kind: str, t: dict[str, Tensor], scale: float, slope: float) -> Tensor:
    """The same with one row per arc."""
    i, j = s.rows, s.indices.long()
    edge = t.get("edge_EHD", torch.zeros(()))
    if kind == "gatv2":
        scores = (leaky_relu(t["row_RHD"][i] + t["col_CHD"][j] + edge, slope) * t["att_HD"]).sum(-1)
        value = t["col_CHD"][j]
    else:
        scores = scale * (t["row_RHD"][i] * (t["col_CHD"][j] + edge)).sum(-1)
        value = t["value_CHD"][j] + edge
    arcs = [range(int(s.indptr[r]), int(s.indptr[r + 1])) for r in range(s.num_rows)]
    alpha = torch.cat([scores[list(row)].softmax(0) for row in arcs if len(row)] or [scores])
    weight = alpha * t.get("keep_EH", torch.ones(()))
    return scores.new_zeros(s.num_rows, *value.shape[1:]).index_add(0, i, weight[:, :, None] * value)


def operands(s: Structure, kind: str, heads: int, width: int, dtype: torch.dtype, *, arcs: bool) -> dict[str, Tensor]:
    shapes = {"row_RHD": (s.num_rows, heads, width), "col_CHD": (s.num_cols, heads, width)}
    shapes |= {"att_HD": (heads, width)} if kind == "gatv2" else {"value_CHD": (s.num_cols, heads, width)}
    shapes |= {"edge_EHD": (s.num_arcs, heads, width)} if arcs else {}
    made = {name: torch.randn(shape, dtype=dtype, requires_grad=True) for name, shape in shapes.items()}
    return made | ({"keep_EH": (torch.rand(s.num_arcs, heads) < 0.6).to(dtype) / 0.6} if arcs else {})


def results(call: Callable[..., Tensor], made: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output, and all gradients for one cotangent."""
    y = call()
    leaves = {name: t for name, t in made.items() if t.requires_grad}
    weight = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).cos().to(y).view_as(y)
    grads = torch.autograd.grad((y * weight).sum(), list(leaves.values()))
    return {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}


def compare(ours: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == wanted.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], wanted[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: n + m
        )


@pytest.mark.parametrize("arcs", [False, True], ids=["plain", "arcs"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equation(make_structure: MakeStructure, shape: tuple[int, int, int], kind: str, arcs: bool) -> None:
    s = make_structure(*shape, ascending=False)
    made = operands(s, kind, 2, 5, torch.float64, arcs=arcs)
    law: dict[str, Any] = {"scale": 0.7, "slope": 0.3}
    law = law if kind == "dot" else {"slope": 0.3}
    wanted = results(lambda: equation(s, kind, made, 0.7, 0.3), made)
    compare(results(lambda: attend_pairs(s, **made, **law), made), wanted, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [(1, 1), (3, 4), (1, 16)])
def test_widths(make_structure: MakeStructure, dtype: torch.dtype, kind: str, block: tuple[int, int]) -> None:
    s = make_structure(11, 8, 40)
    made = operands(s, kind, *block, dtype, arcs=False)
    wanted = results(lambda: equation(s, kind, made, 1.0, 0.2), made)
    compare(results(lambda: attend_pairs(s, **made), made), wanted, 1e-4 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_large_scores(make_structure: MakeStructure, kind: str) -> None:
    s = make_structure(11, 8, 40)
    made = {name: (100 * t).detach() for name, t in operands(s, kind, 2, 4, torch.float64, arcs=False).items()}
    torch.testing.assert_close(attend_pairs(s, **made), equation(s, kind, made, 1.0, 0.2))


@pytest.mark.parametrize("kind", KINDS)
def test_half_types(make_structure: MakeStructure, kind: str, backend: str) -> None:
    if backend == "numba":
        pytest.skip("numba has no half types")
    s = make_structure(11, 8, 40)
    made = operands(s, kind, 2, 8, torch.float32, arcs=False)
    half = {name: t.detach().bfloat16().requires_grad_() for name, t in made.items()}
    fine = {name: t.detach().float().requires_grad_() for name, t in half.items()}
    ours = results(lambda: attend_pairs(s, **half), half)
    assert all(t.dtype == torch.bfloat16 for t in ours.values())
    wanted = results(lambda: equation(s, kind, fine, 1.0, 0.2), fine)
    compare({name: t.float() for name, t in ours.items()}, wanted, 0.06)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kind", KINDS)
def test_reruns_give_the_same_bits(make_structure: MakeStructure, backend: str, kind: str) -> None:
    s = make_structure(8, 6, 40) if backend == "triton" else make_structure(2000, 1500, 20_000)
    made = operands(s, kind, 2, 8, torch.float32, arcs=True)
    first, second = (results(lambda: attend_pairs(s, **made), made) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def largest(s: Structure, x: Tensor) -> Tensor:
    """As PyG's scatter(reduce="max") computes it."""
    index = s.rows[:, None].expand(-1, x.shape[1])
    empty = x.new_zeros(s.num_rows, x.shape[1])
    return empty.scatter_reduce(0, index, x[s.indices.long()], "amax", include_self=False)


@pytest.mark.parametrize("width", [1, 5, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_maximum(make_structure: MakeStructure, dtype: torch.dtype, shape: tuple[int, int, int], width: int) -> None:
    """Few different numbers, and duplicate arcs, so that many are equal."""
    s = make_structure(*shape, ascending=False)
    made = {"x": torch.randint(-2, 3, (s.num_cols, width)).to(dtype).requires_grad_()}
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    compare(results(lambda: arc_max(s, made["x"]), made), results(lambda: largest(s, made["x"]), made), tolerance)
    compare(results(lambda: arc_min(s, made["x"]), made), results(lambda: -largest(s, -made["x"]), made), tolerance)


def test_a_maximum_of_zero_may_keep_all_of_its_gradient(make_structure: MakeStructure) -> None:
    s = make_structure(9, 7, 31)
    x = torch.randint(-2, 1, (7, 5)).double().requires_grad_()
    arc_max(s, x, zeros=False).sum().backward()
    assert x.grad is not None
    assert int(s.indptr.diff().count_nonzero()) * 5 == round(float(x.grad.sum()), 9)
    rest = torch.autograd.grad(arc_max(s, x).sum(), x)[0]
    assert float(rest.sum()) < float(x.grad.sum())  # the zero has a share


def test_maximum_of_half_types_and_of_odd_numbers(make_structure: MakeStructure, backend: str) -> None:
    s = make_structure(11, 8, 40)
    x = torch.randn(8, 6)
    x[2, :2], x[3, 2], x[5, 3:5] = torch.nan, -torch.inf, torch.inf
    torch.testing.assert_close(arc_max(s, x), largest(s, x), equal_nan=True, atol=0, rtol=0)
    if backend != "numba":
        half = {"x": torch.randn(8, 6).bfloat16().requires_grad_()}
        compare(results(lambda: arc_max(s, half["x"]), half), results(lambda: largest(s, half["x"]), half), 0.02)


@pytest.mark.usefixtures("two_threads")
def test_maxima_give_the_same_bits(make_structure: MakeStructure, backend: str) -> None:
    s = make_structure(8, 6, 40) if backend == "triton" else make_structure(2000, 1500, 20_000)
    made = {"x": torch.randint(-2, 3, (s.num_cols, 24)).float().requires_grad_()}
    first, second = (results(lambda: arc_max(s, made["x"]), made) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_wrong_operands_are_refused(make_structure: MakeStructure) -> None:
    s, x = make_structure(4, 3, 6), torch.ones(3, 2, 4)
    row, att = torch.ones(4, 2, 4), torch.ones(2, 4)
    for wrong in ((x, x), (row, row), (row, x, row), (row, x.double(), x)):
        with pytest.raises(InputError):
            attend_pairs(s, *wrong)
    with pytest.raises(InputError, match="either att"):
        attend_pairs(s, row, x, x, att_HD=att)
    with pytest.raises(InputError, match="either att"):
        attend_pairs(s, row, x)
    with pytest.raises(InputError):
        arc_max(s, torch.ones(4, 2))
