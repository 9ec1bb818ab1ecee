"""Layers in parts: equal to the run in memory, within the plan, and without anything left behind."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.nn import GAT, GCN, GCNII, GIN, GraphSAGE, ResGCN
from fullgraph.partition import Assignment, cut_parts
from fullgraph.placement.streamed import Planner
from fullgraph.placement.streamed.files import FiledRows, HeldRows, Shelf
from fullgraph.placement.streamed.parts import ArcFile, PartedRows, Parts, cuts_of, sizes_of
from fullgraph.report.memory import MemoryPlan
from fullgraph.run import Run, build_trainer, not_in_parts, planner_for
from fullgraph.train.config import TrainConfig
from fullgraph.transport import SingleRank
from tests.support import differing, random_graph, saved_epochs, train_trace

MODELS = {
    "gcn": GCN(hidden=8, dropout=0.5, input_dropout=True, norm="layer"),
    "gcn, dense end": GCN(hidden=8, dropout=0.3, layers=4, linear_layers=1, residual=True, norm="layer"),
    "sage": GraphSAGE(hidden=16, dropout=0.5, norm="layer"),
    "sage, wide": GraphSAGE(layers=2, hidden=24, dropout=0.5, norm="none"),
    "gin": GIN(hidden=8, dropout=0.3, norm="layer"),
    "gcnii": GCNII(layers=4, hidden=8, dropout=0.4, norm="layer"),
    "resgcn": ResGCN(layers=3, hidden=8, dropout=0.4, norm="layer"),
    "gat": GAT(hidden=8, dropout=0.4, norm="layer"),
}
GRAPHS = {"undirected": {}, "weighted": {"directed": True, "weighted": True}, "isolated": {"isolated": 40}}


def case_of(**options):
    graph = random_graph(nodes=150, arcs=500, **options)
    return lambda parts: (graph, Assignment(np.zeros(150, np.int32), 1, "case", 0))


@pytest.fixture
def in_parts(monkeypatch):
    """Compute layers in so many parts, with so many stores in memory, however small the graph."""

    def choose(parts, held=0):
        plan = MemoryPlan(budget=1, whole=2, parts=parts, peak=1, held=held)
        monkeypatch.setattr(Planner, "plan", lambda self, budget: plan)

    return choose


def far(one, other):
    """The largest difference between two traces, over whole tensors."""
    pairs = [(one[name], other[name]) for name in ("losses", "logits")]
    for mine, theirs in zip(one["grads"], other["grads"], strict=True):
        assert mine.keys() == theirs.keys()
        pairs += [(mine[name], theirs[name]) for name in mine]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.sweep
@pytest.mark.parametrize("held", [0, 2, 99])
@pytest.mark.parametrize("parts", [2, 7, 20])
@pytest.mark.parametrize("precompute", [True, False])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
def test_equal_to_memory(model, graph, precompute, parts, held, in_parts):
    case, spec = case_of(**GRAPHS[graph]), MODELS[model]
    whole = train_trace(SingleRank(), case, spec, steps=2, precompute=precompute)
    in_parts(parts, held)
    options = {"host_memory": "1GiB"}
    found = train_trace(SingleRank(), case, spec, steps=2, precompute=precompute, options=options)
    assert far(whole, found) < 1e-10
    assert whole["scores"] == found["scores"]


@pytest.mark.parametrize("model", ["gcn", "sage", "gcnii", "gat"])
def test_one_part_has_the_same_bits(model, in_parts):
    case, config = case_of(), TrainConfig(epochs=3, lr=0.05, host_memory="1TiB")
    whole, _ = saved_epochs(SingleRank(), case, MODELS[model], config)
    in_parts(1)
    found, _ = saved_epochs(SingleRank(), case, MODELS[model], replace(config, host_memory="1GiB"))
    assert whole == found


def test_resume_has_the_same_bits(in_parts):
    in_parts(5)
    case, config = case_of(), TrainConfig(epochs=4, lr=0.05, host_memory="1GiB", checkpoint_every=1)
    losses, saved = saved_epochs(SingleRank(), case, MODELS["sage"], config)
    again, rest = saved_epochs(SingleRank(), case, MODELS["sage"], config, start=saved[2])
    assert again == losses[2:]
    assert not differing(saved[-1], rest[-1])


@pytest.mark.parametrize("number", range(12))
def test_routes_between_parts_are_each_other_s_transpose(number, tmp_path):
    """<R x, g> = <x, R^T g>, whether rows are in memory or in files."""
    rng = np.random.default_rng(number)
    nodes, parts = int(rng.integers(1, 50)), int(rng.integers(1, 9))
    graph = random_graph(nodes=max(nodes, 4), arcs=90, seed=number, directed=True)
    part = cut_parts(graph, Assignment(np.zeros(graph.num_nodes, np.int32), 1, "case", 0), 0)
    arcs = ArcFile.of(part)
    made = Parts(arcs, cuts_of(arcs.indptr, parts), "sum", torch.float64, Shelf(tmp_path))
    n, width = graph.num_nodes, 3

    def rows(in_file):
        kinds = [
            FiledRows.scratch(tmp_path, count, width, torch.float64)
            if in_file
            else HeldRows(torch.empty(count, width, dtype=torch.float64))
            for count in (n, made.halo_rows)
        ]
        return PartedRows(*kinds, width, torch.float64)

    x, forward, backward = torch.randn(n, width, dtype=torch.float64), rows(number % 2), rows(number % 3)
    opened = [made.open(k, bare=False) for k in range(len(made))]
    for one in opened:
        forward.put(one, x[one.first : one.last])
    left, gradients = 0.0, [torch.randn(one.num_reads, width, dtype=torch.float64) for one in opened]
    for one, g in zip(opened, gradients, strict=True):
        read = forward.take(one)
        assert torch.equal(read, x[torch.cat([torch.arange(one.first, one.last), one.others])])
        left += float((read * g).sum())
        backward.add(one, g)
    backward.added(bare=False)
    right = sum(float((x[one.first : one.last] * backward.total(one)).sum()) for one in opened)
    assert left == pytest.approx(right, abs=1e-9)
    sizes = sizes_of(arcs, cuts_of(arcs.indptr, parts))
    assert sum(size.reads - size.rows for size in sizes) == made.halo_rows
    assert sum(size.arcs for size in sizes) == graph.num_arcs


def big_part(nodes=8000):
    graph = random_graph(nodes=nodes, arcs=3 * nodes, features=16)
    return cut_parts(graph, Assignment(np.zeros(nodes, np.int32), 1, "case", 0), 0)


def chain_part(nodes):
    """A graph in which each node's neighbours are those before and after it, so parts read few rows of others."""
    steps = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
    graph = random_graph(nodes=nodes, arcs=0, features=16)
    masks = {name: getattr(graph, f"{name}_mask") for name in ("train", "val", "test")}
    graph = Graph(np.concatenate([steps, steps[::-1]], 1), graph.x, graph.y, masks)
    return cut_parts(graph, Assignment(np.zeros(nodes, np.int32), 1, "case", 0), 0)


@pytest.fixture(scope="module")
def part():
    return big_part()


@pytest.fixture(scope="module")
def planner(part):
    return planner_for(Run(model=GraphSAGE(layers=3, hidden=64)), part)


def smallest(planner):
    with pytest.raises(InputError, match=r"needs at least .* give --host-memory (\d+)MB") as refused:
        planner.plan(1 << 20)
    return int(str(refused.value).split("--host-memory ")[1].split("MB")[0]) * 10**6


def test_the_smallest_budget_that_is_named_is_enough(planner):
    least = smallest(planner)
    plan = planner.plan(least)
    assert plan.streams
    assert plan.peak <= least < plan.whole


def test_more_memory_holds_more_stores_and_needs_fewer_parts():
    planner = planner_for(Run(model=GraphSAGE(layers=3, hidden=64)), chain_part(40_000))
    least, whole = smallest(planner), planner.plan(1 << 40).whole
    plans = [planner.plan(int(budget)) for budget in np.linspace(least, whole, 6)]
    assert all(plan.peak <= plan.budget for plan in plans)
    assert not plans[-1].streams
    held = [[line.lives for line in plan.lines if line.what.startswith("store")].count("memory") for plan in plans[:-1]]
    assert held == sorted(held)
    assert held[0] < held[-1]
    assert plans[0].parts > plans[-2].parts


@pytest.mark.sweep
@pytest.mark.parametrize("ones", range(6))
@pytest.mark.parametrize("sixes", range(6))
@pytest.mark.parametrize("dozens", range(6))
def test_random_budgets(dozens, sixes, ones, part, planner, tmp_path):
    """Losses are equal within every budget that the plan accepts, and nothing is left in the scratch folder."""
    number = 36 * dozens + 6 * sixes + ones
    rng = np.random.default_rng(number)
    least, whole = smallest(planner), planner.plan(1 << 40).whole
    budget = int(rng.integers(least, int(1.1 * whole)))
    losses = []
    for memory in ("1TiB", f"{budget}B"):
        config = TrainConfig(epochs=2, dtype="float32", host_memory=memory, scratch=str(tmp_path), seed=number)
        trainer = build_trainer(Run(model=GraphSAGE(layers=3, hidden=64), train=config), part, SingleRank())
        losses.append([float(trainer.train_step()[0]) for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": GraphSAGE(norm="batch")}, "--norm layer"),
        ({"strategy": "gnnpipe", "parts": 2}, "--parts 1"),
        ({"train": TrainConfig(inductive=True)}, "--inductive"),
        ({"train": TrainConfig(checkpoint_layers=True)}, "--checkpoint-layers"),
        ({"train": TrainConfig(device="cuda")}, "--device cpu"),
    ],
)
def test_what_cannot_run_in_parts_says_so(change, told):
    run = Run(**change)
    assert told in not_in_parts(run, max(1, run.parts))


def test_sparse_features_are_refused():
    graph = random_graph(sparse=True)
    part = cut_parts(graph, Assignment(np.zeros(60, np.int32), 1, "case", 0), 0)
    with pytest.raises(InputError, match="sparse features"):
        build_trainer(Run(train=TrainConfig(host_memory="1GiB")), part, SingleRank())


def test_a_small_run_makes_no_plan(part):
    trainer = build_trainer(Run(model=GraphSAGE(hidden=8)), part, SingleRank())
    assert trainer.shard.memory is None
