"""Sums of gated rows, against their equation written with one row per arc."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fullgraph.errors import InputError
from fullgraph.ops import Structure, gated_sum
from tests.ops.test_pairs import SHAPES, compare, results

MakeStructure = Callable[..., Structure]

pytestmark = pytest.mark.usefixtures("backend")
FORMS = {  # the operands that a layer gives
    "col": ("relu", ()),
    "gine": ("relu", ("edge_EK", "gate_KD")),
    "gine direct": ("relu", ("edge_ED",)),
    "gated": ("sigmoid", ("row_RD", "value_CD")),
    "gated edges": ("sigmoid", ("row_RD", "value_CD", "edge_EK", "gate_KD", "extra_KD")),
    "relu edges": ("relu", ("row_RD", "value_CD", "edge_EK", "gate_KD", "extra_KD")),
}


def operands(s: Structure, form: str, width: int, features: int, dtype: torch.dtype) -> dict[str, Tensor]:
    sizes = {"R": s.num_rows, "C": s.num_cols, "E": s.num_arcs, "K": features, "D": width}
    names = ("col_CD", *FORMS[form][1])
    made = {name: torch.randn([sizes[n] for n in name[-2:]], dtype=dtype, requires_grad=True) for name in names}
    return {name.replace("edge_ED", "edge_EK"): t for name, t in made.items()}


def equation(s: Structure, form: str, t: dict[str, Tensor]) -> Tensor:
    i, j = s.rows, s.indices.long()
    z = t["col_CD"][j]
    if "row_RD" in t:
        z = z + t["row_RD"][i]
    if "edge_EK" in t:
        z = z + (t["edge_EK"] @ t["gate_KD"] if "gate_KD" in t else t["edge_EK"])
    messages = z.sigmoid() if FORMS[form][0] == "sigmoid" else z.relu()
    if "value_CD" in t:
        messages = messages * (t["value_CD"][j] + (t["edge_EK"] @ t["extra_KD"] if "extra_KD" in t else 0))
    return messages.new_zeros(s.num_rows, messages.shape[1]).index_add(0, i, messages)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equation(make_structure: MakeStructure, shape: tuple[int, int, int], form: str) -> None:
    s = make_structure(*shape, ascending=False)
    made = operands(s, form, 5, 3, torch.float64)
    wanted = results(lambda: equation(s, form, made), made)
    compare(results(lambda: gated_sum(s, act=FORMS[form][0], **made), made), wanted, 1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [(1, 1), (16, 4), (24, 16)])
def test_widths(make_structure: MakeStructure, dtype: torch.dtype, form: str, block: tuple[int, int]) -> None:
    s = make_structure(11, 8, 40)
    made = operands(s, form, *block, dtype)
    wanted = results(lambda: equation(s, form, made), made)
    ours = results(lambda: gated_sum(s, act=FORMS[form][0], **made), made)
    compare(ours, wanted, 1e-3 if dtype == torch.float32 else 1e-11)


def test_given_features_of_arcs_get_no_gradient(make_structure: MakeStructure) -> None:
    s = make_structure(11, 8, 40)
    made = operands(s, "gated edges", 5, 3, torch.float64)
    made["edge_EK"] = made["edge_EK"].detach()
    wanted = results(lambda: equation(s, "gated edges", made), made)
    compare(results(lambda: gated_sum(s, act="sigmoid", **made), made), wanted, 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_half_types(make_structure: MakeStructure, form: str, backend: str) -> None:
    if backend == "numba":
        pytest.skip("numba has no half types")
    s = make_structure(11, 8, 40)
    half = {name: t.detach().bfloat16().requires_grad_() for name, t in operands(s, form, 8, 3, torch.float32).items()}
    fine = {name: t.detach().float().requires_grad_() for name, t in half.items()}
    ours = results(lambda: gated_sum(s, act=FORMS[form][0], **half), half)
    assert all(t.dtype == torch.bfloat16 for t in ours.values())
    wanted = results(lambda: equation(s, form, fine), fine)
    compare({name: t.float() for name, t in ours.items()}, wanted, 0.1)


def test_odd_numbers(make_structure: MakeStructure) -> None:
    """A NaN stays, and a ReLU has no gradient at 0."""
    s = make_structure(11, 8, 40)
    made = {"col_CD": torch.randint(-1, 2, (8, 6)).double().requires_grad_()}
    with torch.no_grad():
        made["col_CD"][2, 0], made["col_CD"][3, 1] = torch.nan, torch.inf
    wanted = results(lambda: equation(s, "col", made), made)
    ours = results(lambda: gated_sum(s, act="relu", **made), made)
    for name in ours:
        torch.testing.assert_close(ours[name], wanted[name], equal_nan=True)


def with_a_long_row() -> Structure:
    """A row with more arcs than a program on a GPU takes (triton_plan.chunk_size)."""
    degree = torch.ones(41, dtype=torch.int64)
    degree[7] = 1100
    indptr = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
    return Structure(indptr, torch.arange(int(indptr[-1])).int() * 7 % 20, 20)


@pytest.mark.parametrize("form", ["gine", "gated edges"])
def test_a_long_row(form: str) -> None:
    s = with_a_long_row()
    for turned in (s, s.T):  # then it is a long row of the transpose
        made = operands(turned, form, 2, 3, torch.float64)
        wanted = results(lambda t=turned, m=made: equation(t, form, m), made)
        compare(results(lambda t=turned, m=made: gated_sum(t, act=FORMS[form][0], **m), made), wanted, 1e-11)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("form", ["gine", "gated edges"])
def test_reruns_give_the_same_bits(make_structure: MakeStructure, backend: str, form: str) -> None:
    s = make_structure(8, 6, 40) if backend == "triton" else make_structure(2000, 1500, 20_000)
    made = operands(s, form, 8, 3, torch.float32)
    first, second = (results(lambda: gated_sum(s, act=FORMS[form][0], **made), made) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_wrong_operands_are_refused(make_structure: MakeStructure) -> None:
    s, col, edge = make_structure(4, 3, 6), torch.ones(3, 4), torch.ones(6, 2)
    gate, many = torch.ones(2, 4), torch.ones(17, 4)
    for wrong in (
        {"row_RD": col}, {"edge_EK": edge}, {"edge_EK": edge.double(), "gate_KD": gate}, {"gate_KD": gate},
        {"edge_EK": edge, "gate_KD": gate, "extra_KD": gate}, {"edge_EK": torch.ones(6, 17), "gate_KD": many},
    ):  # fmt: skip
        with pytest.raises(InputError):
            gated_sum(s, col, act="relu", **wrong)
    with pytest.raises(InputError, match="relu, sigmoid"):
        gated_sum(s, col, act="tanh")
