"""A pipeline with exact last steps: they equal vanilla's in loss, gradients and bytes, and resume bit-identically."""

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import maximum_bipartite_matching

import fullgraph as fg
from fullgraph import nn
from fullgraph.codec import Half, LowBit
from fullgraph.errors import InputError
from fullgraph.exchange import Bounded, Pipelined, Wire
from fullgraph.placement import History, Partitioned, Pipeline
from fullgraph.placement.pipeline.placement import first_exact
from fullgraph.recipes import STRATEGIES
from fullgraph.report.profile import read_profile
from fullgraph.testing import anew, run_processes, run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.transport import Counting, Key, SingleRank
from tests.exact.test_live_pipeline import near
from tests.exact.test_live_rows import few_trained
from tests.exact.test_pipeline import HISTORIES, MESHES, SPECS, in_turn, oracle, piped
from tests.support import CASES, assert_same, dense_trace, random_graph, train_trace, trainer_of
from tests.support.bodies import differing, resumed_epochs
from tests.support.layerwise import Layerwise

ENDING = {"exact_from": 0.6}  # of five steps, the last two
FIRST = 3


@pytest.mark.parametrize(
    ("share", "epochs", "first"),
    [(1.0, 300, None), (0.8, 300, 240), (0.8, 5, 4), (0.29, 100, 29), (0.999, 200, 200), (0.0, 200, 0)],
)
def test_the_first_exact_step(share, epochs, first):
    assert first_exact(share, epochs) == first


def follows_its_equations(case, model, mesh, live, history=HISTORIES[0], more=None):
    (ranks, options), spec = MESHES[mesh], SPECS[model]
    options = {**options, **ENDING, "history": history, "hops": spec.hops if live else (), **(more or {})}
    outcomes = run_threads(ranks, piped, case, spec, options)
    wanted = oracle(ranks, case, spec, outcomes, **history._asdict(), exact_from=FIRST)
    assert_same([trace for trace, *_ in outcomes], *wanted, tolerance=1e-9 if live else 1e-10)
    assert all(trace["state"] == {} for trace, *_ in outcomes), "exact steps keep nothing"


@pytest.mark.parametrize("live", [False, True], ids=["all rows", "live rows"])
@pytest.mark.parametrize("model", SPECS)
def test_every_model_turns_exact(model, live):
    follows_its_equations(few_trained if live else CASES["weighted"], model, "2 ways, 2 stages", live)


@pytest.mark.parametrize("live", [False, True], ids=["all rows", "live rows"])
@pytest.mark.parametrize(("mesh", "history"), list(zip(MESHES, [*HISTORIES, HISTORIES[0]], strict=True)))
def test_every_mesh_and_history_turns_exact(mesh, history, live):
    follows_its_equations(few_trained if live else CASES["directed"], "sage", mesh, live, history)


@pytest.mark.sweep
@pytest.mark.parametrize("live", [False, True], ids=["all rows", "live rows"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", SPECS)
def test_every_model_on_every_mesh_turns_exact(model, mesh, live):
    follows_its_equations(few_trained if live else CASES["directed"], model, mesh, live)


@pytest.mark.parametrize("case", CASES)
def test_awkward_graphs_turn_exact(case):
    follows_its_equations(CASES[case], "gcn", "3 stages", live=False, more={"chunks": 6})


def beside_vanilla(transport, spec, strategy, steps, hops):
    """A pipeline's step and vanilla's, with the same weights, in the same step of the run."""
    config = TrainConfig(epochs=steps, lr=0.05, seed=3, dtype="float64")
    piped = trainer_of(transport, few_trained, spec, config, strategy=strategy)
    for _ in range(steps - 1):
        piped.train_step()
    weights = {name: value.clone() for name, value in piped.weights.state_dict().items()}

    def last(transport, trainer):
        trainer.weights.load_state_dict(weights)
        trainer.shard.clock.step = steps - 2
        trainer.optimizer.zero_grad = lambda set_to_none=True: None
        loss, _ = trainer.train_step()
        return (
            transport.all_reduce(Key("loss", 0), loss.clone()).wait(),
            {name: p.grad.clone() for name, p in trainer.model.named_parameters()},
        )

    def vanilla(transport):
        placement = partial(Partitioned, hops=hops)
        return last(transport, trainer_of(transport, few_trained, spec, config, placement=placement))

    return last(transport, piped), anew(transport, vanilla) if transport.size > 1 else vanilla(transport)


@pytest.mark.parametrize("hops", ["all rows", "live rows"])
@pytest.mark.parametrize(("name", "ranks"), [("gnnpipe", 1), ("gnnpipe", 3), ("gnnpipe-hybrid", 4)])
def test_the_last_step_is_vanillas(name, ranks, hops):
    for model in ("sage", "gat", "gcnii"):
        spec, strategy = SPECS[model], STRATEGIES.make(name, exact_from="0.75", freeze="2")
        for (loss, grads), (want, exact) in run_threads(
            ranks, beside_vanilla, spec, strategy, 4, spec.hops if hops == "live rows" else ()
        ):
            torch.testing.assert_close(loss, want, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(grads, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("ranks", "ways"), [(1, 1), (3, 1), (4, 2)])
def test_exact_from_the_start_is_exact_training(ranks, ways):
    case, spec = CASES["weighted"], SPECS["gcn"]
    exact = dense_trace(case(ranks)[0], spec, part=torch.zeros(60))
    run = partial(train_trace, narrow_first=False, placement=partial(Pipeline, ways=ways, exact_from=0.0))
    assert_same(run_threads(ranks, run, case, spec), *exact)


LATE = {
    "late hops in two bits": (2, {"hop": Wire(schedule=Pipelined(), codec=LowBit(2)), "cut": (2,)}, Wire()),
    "late halos, half": (2, {"ways": 2}, Wire(schedule=Bounded(3), codec=Half())),
}


@pytest.mark.parametrize("name", LATE)
def test_wires_are_plain_in_exact_steps(name):
    """With almost constant weights, the first exact loss is exact, whatever was late or rounded before."""
    ranks, options, wire = LATE[name]
    case, spec = CASES["directed"], nn.GCN(layers=4, hidden=8, dropout=0.0, norm="layer")
    exact, _ = dense_trace(case(ranks)[0], spec, 1, part=torch.zeros(60))
    options = {**options, **ENDING, "chunks": 4, "history": History(2)}
    for trace, *_ in run_threads(ranks, partial(piped, lr=1e-300), case, spec, options, 5, wire):
        assert (trace["losses"][:FIRST] - exact[0]).abs().min() > 1e-6, "otherwise this test shows nothing"
        torch.testing.assert_close(trace["losses"][FIRST:], exact.expand(2), rtol=1e-12, atol=1e-12)


def test_processes_turn_exact():
    mesh = {"ways": 2, "history": History(2), "hop": Wire(schedule=Pipelined(), codec=Half()), **ENDING}
    runs = [(few_trained, SPECS["gat"], {**mesh, "hop": Wire()}), (CASES["directed"], SPECS["gcn"], mesh)]
    plain, late = zip(*run_processes(4, in_turn, runs), strict=True)
    wanted = oracle(4, few_trained, SPECS["gat"], plain, freeze=2, exact_from=FIRST)
    assert_same([trace for trace, *_ in plain], *wanted)
    (threads, *_), *_ = run_threads(4, piped, *runs[1])
    assert_same([trace for trace, *_ in late], threads["losses"], threads["grads"])


RESUMED = {
    "stages, late hops": (3, {"chunks": 6, "cut": (2, 4), "hop": Wire(schedule=Pipelined(2), codec=LowBit(2))}, Wire()),
    "ways, last gradients": (
        4,
        {"ways": 2, "chunks": 3, "history": History(2, gradients="last")},
        Wire(schedule=Pipelined()),
    ),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_resumed_before_at_or_after_the_switch_is_the_same_run(name):
    ranks, options, wire = RESUMED[name]
    config = TrainConfig(epochs=5, checkpoint_every=1, lr=0.05, seed=3, dtype="float64")
    placement = partial(Pipeline, **options, **ENDING, hops=SPECS["gcn"].hops)
    run = (few_trained, SPECS["gcn"], config, wire, False, False, placement)
    for (losses, saved), *others in run_threads(ranks, resumed_epochs, *run):
        for start, (again, kept) in enumerate(others):
            assert again == losses[start:]
            for want, got in zip(saved[start:], kept, strict=True):
                assert differing(want, got) == []


def sent(transport, case, spec, options, steps):
    """Bytes of rows of every step on this rank, by kind."""
    counts = [{"hops": 0, "halo": 0} for _ in range(steps)]

    def count(key, nbytes):
        if key.use == "rows":
            counts[key.step][key.channel.split("/")[0]] += nbytes

    config = TrainConfig(epochs=steps, dtype="float64")
    placement = partial(Pipeline, **options)
    trainer = trainer_of(Counting(transport, count), case, spec, config, None, False, placement=placement)
    for _ in range(steps):
        trainer.train_step()
    return counts


def halo_rows(case, parts, ways=None):
    """Rows that parts (or ways of several parts) read of one another, each counted once."""
    graph, assignment = case(parts)
    owner = assignment.part // (parts // (ways or parts))
    source, target = graph.edge_index
    cross = owner[source] != owner[target]
    return len(np.unique(np.stack([source, owner[target]])[:, cross], axis=1).T)


def fewest_rows(source, target, owner):
    """The size of a largest matching between the two ends of these edges, summed over pairs of parts."""
    pairs, size = {(int(a), int(b)) for a, b in zip(owner[source], owner[target], strict=True) if a != b}, len(owner)
    total = 0
    for a, b in pairs:
        here = (owner[source] == a) & (owner[target] == b)
        edges = sp.csr_array((np.ones(here.sum(), np.int8), (target[here], source[here])), shape=(size, size))
        total += int((maximum_bipartite_matching(edges) >= 0).sum())
    return total


@pytest.mark.parametrize(("ranks", "ways"), [(2, 1), (4, 1), (4, 2), (3, 3)])
def test_bytes_of_exact_steps_are_those_of_graph_parallelism(ranks, ways):
    """2 (L - 1) exchanges of the smallest cover of one part per rank, and nothing between stages."""
    case, spec = CASES["directed"], nn.GCN(layers=5, hidden=9)
    graph, assignment = case(ranks)
    found = run_threads(ranks, sent, case, spec, {"ways": ways, **ENDING}, 5)
    for step in range(5):
        total = {kind: sum(counts[step][kind] for counts in found) for kind in ("hops", "halo")}
        hops, halo = 2 * (ranks // ways - 1) * 60, 2 * 4 * halo_rows(case, ranks, ways)
        if step >= FIRST:
            # The last layer maps to four classes before it sends.
            hops, halo = 0, 2 * (3 + 4 / 9) * fewest_rows(*graph.edge_index, assignment.part)
        assert total == {"hops": hops * 9 * 8, "halo": round(halo * 9 * 8)}


@pytest.mark.parametrize("ways", [1, 2])
def test_exact_steps_send_only_the_rows_that_are_read(ways):
    spec, ranks = nn.GCN(layers=4, hidden=9), 2
    found = run_threads(ranks, sent, few_trained, spec, {"ways": ways, "hops": spec.hops, **ENDING}, 5)
    graph, assignment = few_trained(ranks)
    source, target = graph.edge_index
    numbers = 0
    for hop, width in ((2, 9), (1, 9), (0, graph.num_classes)):  # the first layer's aggregation is known
        read = near(hop)[target]
        numbers += width * fewest_rows(source[read], target[read], assignment.part)
    for step in range(FIRST, 5):
        assert sum(counts[step]["halo"] for counts in found) == 2 * numbers * 8


def test_a_report_predicts_the_bytes_of_both_phases(tmp_path):
    """Channels that end, and channels that begin, in a run that was resumed after its switch."""
    strategy = fg.recipes.gnnpipe_hybrid(ways=2, exact_from=0.5)
    options = {"parts": 4, "epochs": 6, "checkpoint_every": 5, "out": tmp_path / "run", "strategy": strategy}
    run = fg.train(random_graph(), model=nn.GCN(layers=4, hidden=16), **options)
    for _ in range(2):
        flows = [flow for rank in read_profile(run.folder).ranks for flow in rank.traffic]
        by_label = {(flow.channel, flow.way) for flow in flows}
        assert {channel.split("/")[0] for channel, _ in by_label} == {"hops", "halo"}
        for label in by_label:
            mine = [flow for flow in flows if (flow.channel, flow.way) == label]
            assert sum(flow.bytes for flow in mine) == sum(flow.expected for flow in mine) > 0
        run = fg.resume(run.folder, epochs=9)


def test_a_continued_run_stays_exact_from_where_it_was(tmp_path):
    options = {"parts": 2, "epochs": 4, "checkpoint_every": 4, "out": tmp_path / "run"}
    strategy = fg.recipes.gnnpipe(exact_from=0.5)
    run = fg.train(random_graph(), model=nn.GCN(layers=3, hidden=16), strategy=strategy, **options)
    sent = [record.bytes for record in run.metrics]
    assert sent[0] == sent[1] != sent[2] == sent[3]
    longer = fg.resume(run.folder, epochs=6)
    assert [record.bytes for record in longer.metrics] == [*sent, sent[-1], sent[-1]]
    never = fg.train(
        random_graph(), model=nn.GCN(layers=3, hidden=16), strategy="gnnpipe", **options | {"out": tmp_path / "never"}
    )
    assert {record.bytes for record in fg.resume(never.folder, epochs=6).metrics} == {sent[0]}


@pytest.mark.parametrize("model", [name for name in SPECS if name != "gat"])
def test_layer_by_layer_turns_exact(model):
    case, spec, chunk_N = CASES["weighted"], SPECS[model], torch.arange(60) * 7 % 5
    whole = partial(Layerwise, chunk_of=lambda ids: chunk_N[ids], history=History(2), **ENDING)
    pieces = partial(Pipeline, chunks=5, pieces=lambda *_: chunk_N.numpy(), history=History(2), **ENDING)
    run = partial(train_trace, precompute=False, narrow_first=False)
    trace, want = (run(SingleRank(), case, spec, placement=placement) for placement in (whole, pieces))
    assert_same([trace], want["losses"], want["grads"])


@pytest.mark.parametrize("share", ["1.1", "-0.1", "x"])
def test_refused(share):
    with pytest.raises(InputError, match="exact_from"):
        STRATEGIES.make("gnnpipe", exact_from=share)


def test_chunks_do_not_depend_on_the_exact_end():
    """Chunks of parts whose layers compute few rows are in another order."""
    spec = SPECS["gcn"]
    never, ends = (
        run_threads(2, piped, few_trained, spec, {"chunks": 6, "hops": spec.hops, "exact_from": share}, 1)
        for share in (1.0, 0.0)
    )
    for (_, cut, orders), (_, other, others) in zip(never, ends, strict=True):
        assert orders == others
        assert [(i, ids.tolist()) for i, ids in cut] == [(i, ids.tolist()) for i, ids in other]


def on_gpu(transport, runs):
    return [anew(transport, partial(piped, device="cuda"), *run) for run in runs]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mesh", ["3 stages", "2 ways, 2 stages"])
def test_gpu_processes_turn_exact(mesh):
    ranks, options = MESHES[mesh]
    options = {**options, **ENDING, "history": History(2)}
    runs = [(few_trained, spec, {**options, "hops": spec.hops}) for spec in SPECS.values()]
    done = run_processes(ranks, on_gpu, runs, timeout=280, device="cuda")
    for (case, spec, _), *outcomes in zip(runs, *done, strict=True):
        wanted = oracle(ranks, case, spec, outcomes, freeze=2, exact_from=FIRST)
        assert_same([trace for trace, *_ in outcomes], *wanted, tolerance=1e-9)
