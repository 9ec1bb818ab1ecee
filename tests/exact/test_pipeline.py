"""The pipeline placement equals its equations, sends the bytes of its formula, and works with any wire."""

import re
from collections import Counter
from functools import partial
from itertools import combinations, count, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fullgraph import api, nn, recipes
from fullgraph.codec import Half
from fullgraph.data import Graph
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Pipelined, Wire
from fullgraph.partition import Assignment
from fullgraph.placement import History, Pipeline
from fullgraph.placement.pipeline import balance
from fullgraph.placement.pipeline.balance import balanced
from fullgraph.placement.pipeline.order import stage_order, table
from fullgraph.placement.pipeline.placement import ExactEnd
from fullgraph.recipes import STRATEGIES
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting, SingleRank
from tests.support import CASES, assert_same, chunked_trace, dense_trace, train_trace, trainer_of
from tests.support.layerwise import Layerwise

SPECS = {
    "gcn": nn.GCN(layers=5, hidden=9, dropout=0.5, input_dropout=True, norm="layer", residual=True),
    "sage": nn.GraphSAGE(layers=5, hidden=9, dropout=0.4, input_dropout=True, linear_layers=1),
    "gin": nn.GIN(layers=5, hidden=8, dropout=0.3, input_dropout=True),
    "gat": nn.GAT(layers=5, hidden=8, heads=2, dropout=0.5, input_dropout=True),
    "gcnii": nn.GCNII(layers=4, hidden=7, dropout=0.4),
    "resgcn": nn.ResGCN(layers=4, hidden=7, dropout=0.4),
}
# ranks, options
MESHES = {
    "1 stage": (1, {"chunks": 5}),
    "2 stages": (2, {"chunks": 6}),
    "3 stages": (3, {"chunks": 7}),
    "2 ways": (2, {"chunks": 4, "ways": 2}),
    "2 ways, 2 stages": (4, {"chunks": 3, "ways": 2}),
}
STEPS = 5


def piped(transport, case, spec, options, steps=STEPS, wire=None, strategy=None, **others):
    """A trace, and the chunks: the chunk of every id, and the orders of the steps."""
    placement = partial(Pipeline, **options)
    config = TrainConfig(epochs=steps, seed=3, dtype="float64")
    trainer = trainer_of(transport, case, spec, config, wire, False, placement=placement, strategy=strategy)
    plan = chunked(trainer.shard.executor)
    cut = [(chunk.index, chunk.ids) for chunk in plan.chunks]
    orders = [[chunk.index for chunk in plan.order(step)] for step in range(steps)]
    run = partial(train_trace, narrow_first=False, placement=placement, strategy=strategy, **others)
    return (
        anew(transport, run, case, spec, steps, wire)
        if transport.size > 1
        else run(transport, case, spec, steps, wire),
        cut,
        orders,
    )


def chunked(executor):
    """The part of the executor that works on chunks."""
    return executor.early if isinstance(executor, ExactEnd) else executor


def oracle(ranks, case, spec, outcomes, **options):
    graph, _ = case(ranks)
    chunk_N = torch.full((graph.num_nodes,), -1)
    for _, cut, _ in outcomes:
        for index, ids in cut:
            chunk_N[ids] = index
    assert (chunk_N >= 0).all()
    orders = outcomes[0][2]
    assert all(outcome[2] == orders for outcome in outcomes)
    return chunked_trace(graph, spec, chunk_N, lambda step: orders[step], **options)


ALL = [(model, mesh) for model in ("gcn", "gat") for mesh in MESHES]  # a product with a matrix, and attention
ALL += [(model, "2 ways, 2 stages") for model in SPECS if model not in ("gcn", "gat")]


HISTORIES = [
    History(freeze=2),
    History(freeze=2, gradients="none"),
    History(freeze=2, gradients="last"),
    History(freeze=2, late=True, dropped=True, gradients="last"),
]


@pytest.mark.parametrize(("model", "mesh"), ALL)
def test_chunks_equal_the_mixed_forward_pass(model, mesh):
    (ranks, options), case, spec = MESHES[mesh], CASES["directed"], SPECS[model]
    for history in HISTORIES:
        if history.gradients == "last" and model == "gat":
            continue  # refused
        outcomes = run_threads(ranks, piped, case, spec, {**options, "history": history})
        assert_same([trace for trace, *_ in outcomes], *oracle(ranks, case, spec, outcomes, **history._asdict()))


@pytest.mark.parametrize("case", CASES)
def test_awkward_graphs(case):
    """Empty parts, isolated nodes, sparse features and so on, over three stages."""
    spec = nn.GCN(layers=4, hidden=6, dropout=0.5, input_dropout=True)
    outcomes = run_threads(3, piped, CASES[case], spec, {"chunks": 6, "history": History(1)})
    assert_same([trace for trace, *_ in outcomes], *oracle(3, CASES[case], spec, outcomes, freeze=1))


@pytest.mark.parametrize("name", ["gnnpipe", "gnnpipe-hybrid"])
def test_recipes_equal_their_equations(name):
    """Recipes as the command line builds them."""
    recipe = STRATEGIES.make(name, freeze="3")
    case, spec = CASES["weighted"], SPECS["sage"]
    outcomes = run_threads(4, piped, case, spec, {}, STEPS, None, recipe)
    assert_same([trace for trace, *_ in outcomes], *oracle(4, case, spec, outcomes, freeze=3))
    assert len(outcomes[0][2][0]) == {"gnnpipe": 16, "gnnpipe-hybrid": 8}[name]
    assert len({tuple(order) for order in outcomes[0][2]}) == STEPS  # another order every step


@pytest.mark.sweep
@pytest.mark.parametrize(("ranks", "ways"), [(3, 1), (3, 3), (4, 2)])
@pytest.mark.parametrize("model", SPECS)
def test_one_chunk_is_vanilla(model, ranks, ways):
    case = CASES["weighted"]
    graph, _ = case(ranks)
    exact = dense_trace(graph, SPECS[model], part=torch.zeros(graph.num_nodes))
    outcomes = run_threads(ranks, piped, case, SPECS[model], {"chunks": 1, "ways": ways})
    assert_same([trace for trace, *_ in outcomes], *exact)


def test_inductive_training_sees_the_subgraph():
    graph, _ = CASES["weighted"](2)
    mask = torch.from_numpy(graph.train_mask[:, 0].copy())
    exact = dense_trace(
        graph.subgraph(mask.numpy()), SPECS["gcn"], ids=mask.nonzero()[:, 0], part=torch.zeros(mask.sum())
    )
    run = partial(train_trace, inductive=True, narrow_first=False, placement=partial(Pipeline, chunks=1))
    assert_same(run_threads(2, run, CASES["weighted"], SPECS["gcn"]), *exact)


def uneven(parts, empty=False):
    """Two halves without arcs between them, one with full features, one with few; or a part without nodes."""
    dice = np.random.default_rng(0)
    half = dice.integers(0, 30, (2, 80))
    x = np.zeros((60, 9))
    x[:30], x[30:, 0] = dice.random((30, 9)) + 1, 1.0
    masks = [np.arange(60) % 3 == part for part in range(3)]
    graph = Graph(np.hstack([half, half + 30]), sp.csr_array(x), np.arange(60) % 4, masks)
    part = np.arange(60) * (parts - empty) // 60
    return graph, Assignment(part.astype(np.int32), parts, "case", 0)


@pytest.mark.parametrize("empty", [False, True])
def test_ranks_agree_whether_aggregated_features_are_sparse(empty):
    case = partial(uneven, empty=empty)
    exact = dense_trace(case(3)[0], SPECS["gcn"], part=torch.zeros(60))
    assert_same([t for t, *_ in run_threads(3, piped, case, SPECS["gcn"], {"chunks": 1})], *exact)


def held(transport, case, spec, steps):
    config = TrainConfig(epochs=steps, dtype="float64")
    trainer = trainer_of(transport, case, spec, config, placement=partial(Pipeline, chunks=3, cut=(2,)))
    for _ in range(steps):
        trainer.train_step()
    return sorted(re.sub(r"version\.\d+", "version", name) for name in trainer.shard.state())


def test_what_is_held_does_not_grow():
    few, many = (run_threads(2, held, CASES["directed"], SPECS["gcn"], steps) for steps in (2, 5))
    assert few == many


def test_chunks_of_another_cut_are_not_resumed():
    case, config = CASES["directed"], TrainConfig(epochs=2, dtype="float64")
    first, second = (
        trainer_of(SingleRank(), case, SPECS["gcn"], config, placement=partial(Pipeline, chunks=2, pieces=pieces))
        for pieces in (lambda *_: np.arange(60) % 2, lambda *_: np.arange(60) // 30)
    )
    first.train_step()
    with pytest.raises(InputError, match="chunks were cut by another METIS; resume where it was written"):
        second.shard.load_state(first.shard.state())


STILL = nn.GCN(layers=4, hidden=8, dropout=0.0, norm="layer")
LATE = {
    "last step's": ({"history": History(1)}, Wire()),
    "frozen": ({"history": History(3)}, Wire()),
    "late hops": ({"history": History(2), "hop": Wire(schedule=Pipelined())}, Wire()),
    "late halos": ({"history": History(2), "ways": 2}, Wire(schedule=Pipelined())),
    "late all over": (
        {"ways": 2, "history": History(2), "hop": Wire(schedule=Pipelined(2))},
        Wire(schedule=Bounded(3)),
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_frozen_weights_reach_the_exact_loss(name):
    options, wire = LATE[name]
    case = CASES["directed"]
    exact, _ = dense_trace(case(4)[0], STILL, 1, part=torch.zeros(60))
    outcomes = run_threads(4, partial(piped, lr=1e-300), case, STILL, options, 16, wire)
    for trace, *_ in outcomes:
        assert abs(trace["losses"][0] - exact[0]) > 1e-6, "zeros in place of rows should be seen in the loss"
        torch.testing.assert_close(trace["losses"][-1], exact[0], rtol=1e-12, atol=1e-12)


def in_turn(transport, runs):
    return [anew(transport, piped, *run) for run in runs]


def test_processes_equal_threads():
    """The same bodies over gloo: four ranks, as stages, and as ways by stages."""
    case, meshes = CASES["directed"], [{"chunks": 8, "history": History(2)}, {"ways": 2, "history": History(2)}]
    specs = [SPECS["gcn"], SPECS["gat"]]
    ranks = run_processes(4, in_turn, [(case, spec, mesh) for spec, mesh in zip(specs, meshes, strict=True)])
    for spec, *outcomes in zip(specs, *ranks, strict=True):
        assert_same([trace for trace, *_ in outcomes], *oracle(4, case, spec, outcomes, freeze=2))


def sent(transport, case, spec, options, wire):
    """Bytes of one step on this rank: of hops, and of halos."""
    numbers = Counter()

    def count(key, nbytes):
        numbers[key.channel.split("/")[0]] += nbytes

    counting = Counting(transport, count)
    config = TrainConfig(epochs=1, dtype="float64")
    trainer = trainer_of(counting, case, spec, config, wire, False, placement=partial(Pipeline, **options))
    trainer.train_step()
    numbers.clear()
    trainer.train_step()
    return numbers


@pytest.mark.parametrize(("ranks", "ways"), [(2, 1), (4, 1), (4, 2), (3, 3)])
def test_bytes_equal_the_formula(ranks, ways):
    """2 (S - 1) N rows of hops; and 2 (L - 1) times the halo rows of a partition into ways, like vanilla on as many
    ranks.
    """
    case, spec = CASES["directed"], nn.GCN(layers=5, hidden=9)
    stages = ranks // ways
    counts = run_threads(ranks, sent, case, spec, {"ways": ways}, Wire())
    assert sum(count["hops"] for count in counts) == 2 * (stages - 1) * 60 * 9 * 8
    graph, assignment = case(ranks)
    way = torch.from_numpy(assignment.part.copy()).long() // stages
    target = torch.repeat_interleave(torch.arange(60), torch.from_numpy(np.diff(graph.indptr)))
    source = torch.from_numpy(graph.indices.copy()).long()
    cross = way[source] != way[target]
    halo = len(torch.stack([source, way[target]])[:, cross].unique(dim=1).T)
    assert sum(count["halo"] for count in counts) == 2 * (spec.layers - 1) * halo * 9 * 8


def test_a_codec_rides_on_hops():
    case, spec = CASES["directed"], nn.GCN(layers=5, hidden=9)
    counts = run_threads(2, sent, case, spec, {"hop": Wire(codec=Half())}, Wire())
    assert sum(count["hops"] for count in counts) == 2 * 60 * 9 * 2


def test_stages_are_balanced():
    dice = np.random.default_rng(0)
    for _ in range(50):
        blocks = int(dice.integers(1, 8))
        stages = int(dice.integers(1, blocks + 1))
        costs = dice.random(blocks).tolist()

        def dearest(cut, costs=costs):
            return max(sum(costs[first:last]) for first, last in pairwise([0, *cut, len(costs)]))

        best = min(dearest(cut) for cut in combinations(range(1, blocks), stages - 1))
        assert dearest(balanced(costs, stages)) == pytest.approx(best)


class Unchained(torch.nn.Module):
    def forward(self, x, view):
        return x


REFUSED = {
    "2 stages for a model of 1 layers": (2, {}, nn.GCN(layers=1)),
    "4 stages for a model of 3 layers; use more layers, fewer ranks or more ways": (
        4,
        {},
        nn.GCN(layers=3),
    ),
    "ways=3 does not divide 4 ranks; choose ways from 1, 2, 4": (4, {"ways": 3}, nn.GCN()),
    "ways=-1 does not divide": (4, {"ways": -1}, nn.GCN()),
    "stages=3 does not divide 4 ranks; choose stages from 1, 2, 4": (4, {"ways": 0, "stages": 3}, nn.GCN()),
    "ways=2 x stages=4 are not 4 ranks": (4, {"ways": 2, "stages": 4}, nn.GCN()),
    "give one of them": (4, {"ways": 0}, nn.GCN()),
    "chunks=2: fewer than the 3 stages; choose 3 or more, or 0": (3, {"chunks": 2}, nn.GCN()),
    "freeze=0: at least 1": (3, {"history": History(0)}, nn.GCN()),
    "batch norm needs all nodes at once": (3, {}, nn.GCN(norm="batch")),
    "cut=2,1: give the first layer of each of the 3 stages": (3, {"cut": (2, 1)}, nn.GCN()),
    "cut=1: give the first layer": (3, {"cut": (1,)}, nn.GCN()),
    "cut=1,3: give the first layer": (3, {"cut": (1, 3)}, nn.GCN()),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_before_any_rank_starts(words):
    ranks, options, spec = REFUSED[words]
    with pytest.raises(InputError, match=re.escape(words)) as told:
        Pipeline(**options).check(spec.build(2, 2), ranks)
    assert "\n" not in str(told.value)


def test_a_model_that_is_no_chain_cannot_be_cut():
    with pytest.raises(InputError, match="a pipeline cannot cut Unchained"):
        Pipeline().check(Unchained(), 2)


def test_a_refused_run_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="4 stages for a model of 3 layers"):
        api.train("demo", strategy=recipes.gnnpipe(), parts=4, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="cut=a: each item a whole number"):
        recipes.gnnpipe(cut="a")


@pytest.mark.sweep
@pytest.mark.parametrize("model", [name for name in SPECS if name != "gat"])
@pytest.mark.parametrize(
    "options",
    [*({"history": history} for history in HISTORIES), {"history": History(1, gradients="none"), "shuffle": False}],
)
def test_layer_by_layer_is_the_same(model, options):
    """Benchmarks study accuracy in this way."""
    case, spec = CASES["weighted"], SPECS[model]
    chunk_N = torch.arange(60) * 7 % 5
    whole = partial(Layerwise, chunk_of=lambda ids: chunk_N[ids], **options)
    pieces = partial(Pipeline, chunks=5, pieces=lambda *_: chunk_N.numpy(), **options)
    run = partial(train_trace, precompute=False, narrow_first=False)
    trace, want = (run(SingleRank(), case, spec, placement=placement) for placement in (whole, pieces))
    assert_same([trace], want["losses"], want["grads"])


def on_gpu(transport, runs):
    return [anew(transport, partial(piped, device="cuda"), CASES["directed"], spec, options) for spec, options in runs]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mesh", ["3 stages", "2 ways, 2 stages"])
def test_gpu_processes_equal_the_mixed_forward_pass(mesh):
    """Processes: ranks of one process share the GPU's autograd thread. All models in one set of processes."""
    ranks, options = MESHES[mesh]
    runs = [(spec, {**options, "history": History(2)}) for spec in SPECS.values()]
    done = run_processes(ranks, on_gpu, runs, timeout=280, device="cuda")
    for (spec, _), *outcomes in zip(runs, *done, strict=True):
        assert_same([trace for trace, *_ in outcomes], *oracle(ranks, CASES["directed"], spec, outcomes, freeze=2))


def borders(transport, case, spec, measure):
    config = TrainConfig(epochs=1, seed=3, dtype="float64")
    trainer = trainer_of(transport, case, spec, config, placement=partial(Pipeline, chunks=4, measure=measure))
    trainer.train_step()
    return tuple(trainer.shard.executor.cut), trainer.shard.executor.choices()


def clock(slow):
    """Read before and after each of a block's three repeats."""
    reads = count()

    def now(_):
        read = next(reads)
        return read + 1e3 * (read // 6 == slow and read % 2)

    return now


@pytest.mark.parametrize("measure", [False, True], ids=["counted", "measured"])
def test_borders_do_not_depend_on_the_clock_unless_asked(measure, monkeypatch):
    spec, case = nn.GCN(layers=9, hidden=16), CASES["undirected"]
    found = []
    for slow in range(9):  # a clock by which one block takes far longer than the others
        monkeypatch.setattr(balance, "_now", clock(slow))
        found.append(run_threads(3, borders, case, spec, measure))
    cuts = {cut for ranks in found for cut, _ in ranks}
    assert (len(cuts) > 1) == measure
    for ranks in found:
        assert all(choices == ({"cut": cut} if measure else {}) for cut, choices in ranks)


def test_equal_layers_are_spread_evenly():
    spec = nn.GCN(layers=9, hidden=12)
    for cut, _ in run_threads(3, borders, CASES["undirected"], spec, False):
        assert cut == (3, 6)


def test_the_order_of_stages_is_printed():
    """A stage works as soon as the stage before it (forward) or after it (backward) is done with the chunk."""
    assert table(3, 2).splitlines() == [
        "stage 0: F0 F1             B1 B0",
        "stage 1:    F0 F1       B1 B0",
        "stage 2:       F0 F1 B1 B0",
    ]
    order = stage_order([2, 0, 1, 3])
    assert [str(action) for action in order] == ["F2", "F0", "F1", "F3", "B3", "B1", "B0", "B2"]
    assert [action.coming for action in order] == [(2, 0, 1), (3,), (), (), (3, 1, 0), (2,), (), ()]
