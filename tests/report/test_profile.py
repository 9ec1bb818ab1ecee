"""profile.json: the bytes sent equal the prediction of the strategy, and measuring changes nothing."""

import json
from functools import partial

import pytest

import fullgraph as fg
from fullgraph import nn, recipes
from fullgraph.exchange import Skip
from fullgraph.partition import cut_parts
from fullgraph.report.profile import PlannedLayer, read_profile
from fullgraph.storage import sealed
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.profiler import Profiler
from fullgraph.transport import Key
from fullgraph.transport.gather import texts_for_first as gather_texts
from tests.support import random_graph
from tests.support.bodies import trainer_of
from tests.support.cases import CASES

EPOCHS = 6
STRATEGIES = {
    "vanilla": recipes.vanilla(),
    "half": recipes.vanilla(codec="half"),
    "pipegcn": recipes.pipegcn(),
    "skip": recipes.free(schedule=Skip(2)),
    "sylvie-a": recipes.sylvie_a(bits=2),
    "adaptive": recipes.sylvie_s(adaptive=True, tau=1),
    "varco": recipes.varco(),
    "mixgcn": recipes.mixgcn(blocks=2),
    "gnnpipe": recipes.gnnpipe(),
    "gnnpipe-hybrid": recipes.gnnpipe_hybrid(ways=2),
}


def body(transport, folder, strategy, report=True, spec=None):
    spec = spec or nn.GCN(layers=4, hidden=8)
    config = TrainConfig(epochs=EPOCHS, eval_every=3, report=report)
    trainer = trainer_of(transport, CASES["undirected"], spec, config, strategy=strategy)
    if report:
        part = cut_parts(*CASES["undirected"](transport.size), transport.rank)
        profiler = Profiler(trainer, part, folder)
        trainer.fit([profiler])
        profiler.finish()
    else:
        trainer.fit([])
    return [record.loss for record in trainer.records], [record.bytes for record in trainer.records]


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_was_sent_is_what_the_strategy_predicts(tmp_path, name):
    found = run_threads(4, partial(body, folder=tmp_path, strategy=STRATEGIES[name]))
    profile = read_profile(tmp_path)
    flows = {}
    for rank in profile.ranks:
        for flow in rank.traffic:
            both = flows.setdefault((flow.channel, flow.way), [0, 0])
            flows[flow.channel, flow.way] = [both[0] + flow.bytes, both[1] + flow.expected]
    assert {name: sent for name, (sent, _) in flows.items()} == {name: want for name, (_, want) in flows.items()}
    assert sum(sent for sent, _ in flows.values()) == sum(found[0][1]) == profile.total.bytes > 0
    assert {way for _, way in flows} == {"forward", "backward"}


@pytest.mark.parametrize(("name", "sends"), [("vanilla", "mapped"), ("pipegcn", "input"), ("gnnpipe", "input")])
def test_the_plan_is_kept(tmp_path, name, sends):
    strategy = {"vanilla": recipes.vanilla(), **STRATEGIES}[name]
    run_threads(2, partial(body, folder=tmp_path, strategy=strategy))
    graph = CASES["undirected"](1)[0]
    kinds = ["nothing", "input", "input", sends]
    columns = [0, 8, 8, graph.num_classes if sends == "mapped" else 8]
    assert read_profile(tmp_path).plan == tuple(
        PlannedLayer(layer=i, sends=s, known="" if i else "aggregate", columns=c, rows=graph.num_nodes)
        for i, (s, c) in enumerate(zip(kinds, columns, strict=True))
    )


def test_measuring_changes_no_result(tmp_path):
    for name in ("pipegcn", "adaptive"):
        bodies = [partial(body, folder=tmp_path, strategy=STRATEGIES[name], report=report) for report in (True, False)]
        assert run_threads(3, bodies[0]) == run_threads(3, bodies[1])


def test_shares_of_an_epoch_add_up(tmp_path):
    run_threads(3, partial(body, folder=tmp_path, strategy=recipes.pipegcn()))
    profile = read_profile(tmp_path)
    assert profile.typical_epoch in (1, 3)
    for number, rank in enumerate(profile.ranks):
        assert sum(bin.epochs for bin in rank.bins) == EPOCHS
        assert sum(bin.lag for bin in rank.bins) == EPOCHS - 1  # the first epoch reads nothing
        for bin in rank.bins:
            assert bin.step_s >= bin.pack_s + bin.wait_s + bin.sum_s > 0
            assert 0 <= bin.hidden_s <= bin.step_s
        assert rank.halo[number] == 0
        assert sum(rank.halo) > 0
        whole, *pieces = rank.typical
        assert whole.kind == "compute"
        assert all(whole.start - 1e-6 <= p.start <= p.end <= whole.end + 1e-6 for p in pieces)
    assert min(rank.typical[0].start for rank in profile.ranks) == 0


def test_texts_of_any_length_come_to_rank_0():
    def talk(transport):
        return gather_texts("é" * 1000 * transport.rank, transport, Key("talk", 0))

    first, *others = run_threads(3, talk)
    assert [text.strip() for text in first] == ["", "é" * 1000, "é" * 2000]
    assert others == [[], []]


def test_a_resumed_run_adds_to_its_profile(tmp_path):
    graph = random_graph(nodes=200, arcs=900)
    options = {"parts": 2, "strategy": "sylvie-a", "checkpoint_every": 2, "eval_every": 2}
    run = fg.train(graph, epochs=4, out=tmp_path / "run", **options)
    before = read_profile(run.folder)
    fg.resume(run.folder, epochs=7)
    after = read_profile(run.folder)
    assert (before.first_epoch, after.first_epoch) == (1, 1)
    assert sum(bin.epochs for bin in before.ranks[1].bins) == 4
    assert sum(bin.epochs for bin in after.ranks[1].bins) == 7
    sums = [[sum(getattr(f, name) for r in p.ranks for f in r.traffic) for p in (before, after)]
            for name in ("bytes", "expected")]  # fmt: skip
    assert sums[0] == sums[1]
    assert sums[0][1] == sum(record.bytes for record in run.metrics)


def test_a_profile_that_does_not_fit_is_not_added_to(tmp_path):
    graph = random_graph(nodes=200, arcs=900)
    run = fg.train(graph, epochs=4, checkpoint_every=2, eval_every=2, out=tmp_path / "run")
    tree = json.loads((run.folder / "profile.json").read_text())
    tree.pop("checksum")
    tree["ranks"][0]["bins"].pop()
    (run.folder / "profile.json").write_text(json.dumps(sealed(tree)))
    fg.resume(run.folder, epochs=6)
    after = read_profile(run.folder)
    assert after.first_epoch == 5
    assert sum(bin.epochs for bin in after.ranks[0].bins) == 2


def test_without_a_report_nothing_is_measured_or_written(tmp_path):
    run = fg.train(random_graph(), epochs=2, report=False, out=tmp_path / "run")
    assert not (run.folder / "profile.json").exists()
    assert not (run.folder / "report.html").exists()


def test_nobody_is_asked_of_pieces_without_a_report():
    def count(transport):
        trainer = trainer_of(transport, CASES["undirected"], nn.GCN(layers=3, hidden=8), TrainConfig(report=False))
        tally = trainer.train_step()[1]
        return {span.kind for span in tally.spans}

    assert run_threads(2, count) == [{"forward_backward", "sum", "update", "wait"}] * 2
