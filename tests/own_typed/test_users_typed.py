"""Users' models for typed graphs equal plain PyG in one process: losses, logits, gradients and weights, in float64."""

import copy
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")

import fullgraph as fg
from fullgraph.errors import InputError
from fullgraph.testing import run_threads
from tests.own_typed import typed_cases as users

PAGE = Path(__file__).parents[2] / "docs" / "typed.md"
pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")


@pytest.mark.parametrize("case", users.CASES, ids=lambda case: case.name)
def test_equal_or_refused(case):
    """Over three steps with an evaluation each; every venue is on one rank, and a relation has no edges."""
    graph, data, model = users.built(case)
    if case.refused:
        with pytest.raises(InputError) as refusal:
            users.over_ranks(model, graph, 3, case.call)
        assert case.refused in str(refusal.value)
        assert "\n" not in str(refusal.value)
        return
    want = users.in_one_process(copy.deepcopy(model), data, case.call)
    for ranks in (1, 2, 3):
        assert users.far_apart(users.over_ranks(model, graph, ranks, case.call), want) < 1e-12


def test_the_page_has_this_table():
    assert users.table() in PAGE.read_text()


@pytest.mark.parametrize("name", ["hetero_sage", "HGT", "hetero_bases", "RGCN"])
def test_messages_in_chunks(name, monkeypatch):
    """A layer that may keep few messages at a time gives the same result."""
    from fullgraph.own_model import module

    case = users.NAMED[name]
    graph, data, model = users.built(case)
    monkeypatch.setattr(module, "Chunks", lambda budget, note: CHUNKS(budget, note, arcs=16))
    want = users.in_one_process(copy.deepcopy(model), data, case.call)
    assert users.far_apart(users.over_ranks(model, graph, 3, case.call, message_memory="1KiB"), want) < 1e-12


def CHUNKS(*args, **options):
    from fullgraph.own_model.chunked import Chunks

    return Chunks(*args, **options)


@pytest.mark.parametrize("strategy", ["pipegcn", "sylvie-s", "varco-slow", "none"])
def test_wires(strategy):
    """Late, coarse and absent halos train, and evaluation is exact: the logits of one process with these weights."""
    case = users.NAMED["hetero_sage"]
    graph, data, model = users.built(case)
    found, grads, state = users.over_ranks(model, graph, 3, case.call, strategy=strategy)
    exact, _, _ = users.over_ranks(model, graph, 3, case.call)
    assert all(grad.isfinite().all() for grad in grads.values())
    assert float((found[0][1] - exact[0][1]).abs().max()) > 0 or strategy == "varco-slow"
    model.load_state_dict(state)
    with torch.no_grad():
        logits = users.logits_of(case.call(model.eval(), data))
    torch.testing.assert_close(found[-1][2], logits, rtol=1e-10, atol=1e-10)


def test_dropout_does_not_depend_on_the_number_of_ranks():
    case = users.NAMED["HANDropout"]
    graph, _, model = users.built(case)
    want = users.over_ranks(model, graph, 1, case.call)
    for ranks in (2, 3):
        assert users.far_apart(users.over_ranks(model, graph, ranks, case.call), want) < 1e-12


def test_a_node_that_several_relations_read_crosses_once():
    """Four SAGE layers of HeteroConv read papers' rows, which are sent once."""
    case = users.NAMED["ManyReaders"]
    graph, _, model = users.built(case)
    assert users.crossings(model, graph, case.call) == 2


def test_scores_and_gathered_rows():
    """fg.evaluate and fg.gather_rows in one's own loop, on three ranks."""
    case = users.NAMED["HGT"]
    graph, data, model = users.built(case)
    with torch.no_grad():
        logits = case.call(model.eval(), data)
    paper = data["paper"]
    right = (logits.argmax(1) == paper.y).double()

    def body(transport):
        shard = users.shard_of(transport, graph)
        own = fg.distribute(copy.deepcopy(model), shard)
        scores = fg.evaluate(own)
        with torch.no_grad():
            return scores, fg.gather_rows(own.eval()(shard), shard, kind="paper")

    for scores, rows in run_threads(3, body):
        torch.testing.assert_close(rows, logits, rtol=1e-10, atol=1e-10)
        for split in ("train", "val", "test"):
            assert scores[split] == pytest.approx(float(right[paper[f"{split}_mask"]].mean()))


def test_other_edges_and_rows_are_refused():
    case = users.NAMED["hetero_sage"]
    graph, _, model = users.built(case)

    def body(transport):
        shard = users.shard_of(transport, graph)
        own = fg.distribute(copy.deepcopy(model), shard, check=False)
        some = dict(list(shard.edge_index_dict.items())[:2])
        with pytest.raises(InputError, match="edge_index_dict is not this shard's"):
            own(shard.x_dict, some)
        with pytest.raises(InputError, match="x_dict has movie, which is not a node type"):
            own({"movie": shard.x_dict["paper"]}, shard.edge_index_dict)
        with pytest.raises(InputError, match="x has 3 rows where training of paper has"):
            own({"paper": shard.x_dict["paper"][:3]}, shard.edge_index_dict)

    run_threads(1, body)
