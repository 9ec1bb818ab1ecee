"""Models as users write them are equal to plain PyG in one process, or refused in words that name the way out."""

from pathlib import Path

import pytest

from fullgraph.errors import InputError
from tests.own_model import users_cases as users
from tests.own_model.users_kinds import CASES, table

PAGE = Path(__file__).parents[2] / "docs" / "own_models.md"


@pytest.fixture(scope="module")
def graph():
    pytest.importorskip("torch_geometric")
    return users.users_graph()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:Sparse CSR", r"ignore:The \.grad attribute of a")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equal_or_refused(case, graph):
    """Losses, outputs, gradients and weights over three steps and an evaluation, in float64."""
    if case.refused:
        with pytest.raises(InputError) as refusal:
            users.over_ranks(case, graph, 3)
        assert case.refused in str(refusal.value)
        assert "\n" not in str(refusal.value)
        return
    want = users.over_ranks(case, graph, 1) if case.draws else users.in_one_process(case, graph)
    for ranks in (2, 3) if case.draws else (1, 2, 3):
        assert users.far_apart(users.over_ranks(case, graph, ranks), want) < 1e-12


def test_the_page_has_this_table():
    assert table() in PAGE.read_text()
