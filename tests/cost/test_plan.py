"""A plan: its ranking, its risks, strategies that do not fit; and `auto`, which uses it."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

import fullgraph as fg
from fullgraph.data import load
from fullgraph.errors import InputError
from fullgraph.lab.cost import local_machine
from fullgraph.lab.cost import plan as plans
from fullgraph.lab.cost.cluster import Cluster, Link
from fullgraph.lab.cost.counting import Halo, counted, counted_parts, even
from fullgraph.lab.cost.plan import Choice, Plan, Risk, best, offered, ranked, risk_of
from fullgraph.lab.cost.predict import Prediction, period_of, predict
from fullgraph.lab.cost.rates import DEVICES, Curve, Rates, rates_of
from fullgraph.lab.cost.replay import Taken
from fullgraph.lab.cost.script import Work
from fullgraph.lab.cost.show import plan_page, plan_table, verdict
from fullgraph.partition import GraphFacts, cut_parts, partition, write_parts
from fullgraph.recipes import STRATEGIES
from fullgraph.run import Run

RATES = rates_of("t4")
EXACT = Risk()
RUN = Run(model=fg.nn.GraphSAGE(layers=3, hidden=64))
SIZE = GraphFacts(
    name="products", nodes=2_449_029, arcs=123_718_280, features=100, classes=47, multilabel=False, weighted=False,
    splits=1, sparse=False,
)  # fmt: skip
HALO = Halo(rows=0.12, rows_power=-0.5, arcs=0.05, arcs_power=0.2)


def machines(count, rate, **more):
    return Cluster(machines=count, cores=1, link=Link(bits_per_s=rate, latency_s=1e-5), rates="t4", **more)


@cache
def plan(rate, ranks=4, **more):
    counts = even(SIZE, ranks, HALO, train=0.6)
    return ranked(RUN, counts, machines(ranks, rate, **more), RATES)


def test_slow_links_favour_few_bits_and_fast_ones_exact_training():
    slow, fast = plan(200e6), plan(400e9)
    assert slow[0].name.startswith("sylvie")
    epochs = {choice.name: choice.epoch_s for choice in slow}
    assert epochs["vanilla"] > 5 * epochs["sylvie-a"]
    assert epochs["pipegcn narrow=true"] <= epochs["vanilla"]
    assert best(fast).risk == Risk()
    assert {choice.name: choice for choice in fast}["vanilla"].epoch_s < 1.3 * fast[0].epoch_s


def test_what_is_allowed_bounds_the_choice():
    choices = plan(200e6)
    assert best(choices).risk.kinds == frozenset()
    assert best(choices, ["stale"]).risk.kinds <= {"stale"}
    assert best(choices, ["stale", "lossy"]) is choices[0]


def test_what_does_not_fit_says_what_would(monkeypatch):
    choices = plan(10e9, memory_bytes=1 << 30)
    vanilla = next(choice for choice in choices if choice.name == "vanilla")
    assert "needs" in vanilla.refused
    assert "use more ranks" in vanilla.refused
    with pytest.raises(InputError, match="no strategy fits"):
        best(choices)


def test_a_strategy_that_cannot_be_laid_out_is_refused_with_its_own_line():
    choices = {choice.name: choice for choice in plan(10e9, ranks=8)}
    assert "8 stages for a model of 3 layers" in choices["gnnpipe"].refused


@pytest.mark.parametrize(
    ("name", "options", "steps", "bits"),
    [
        ("vanilla", {}, 0, 32), ("vanilla", {"codec": "half"}, 0, 16), ("pipegcn", {}, 1, 32),
        ("pipegcn", {"lag": "3"}, 3, 32), ("sylvie-s", {"bits": "4"}, 0, 4.125), ("sylvie-a", {}, 1, 1.125),
        ("gnnpipe", {}, 23, 32), ("gnnpipe", {"chunks": "1"}, 0, 32), ("gnnpipe", {"exact_from": "0"}, 0, 32),
        ("gnnpipe", {"exact_from": "0.8"}, 23, 32), ("mixgcn", {}, 0, 32),
    ],
)  # fmt: skip
def test_risks(name, options, steps, bits):
    run = replace(RUN, strategy=STRATEGIES.make(name, **options), parts=2)
    assert risk_of(run) == Risk(steps=steps, bits=bits)


def test_an_epoch_is_the_mean_of_a_runs_phases():
    counts, cluster = even(SIZE, 2, HALO, train=0.6), machines(2, 1e9)

    def predicted(share):
        run = replace(RUN, strategy=STRATEGIES.make("gnnpipe", exact_from=share), parts=2)
        return predict(run, counts, cluster, RATES)

    chunked, mixed, exact = (predicted(share) for share in ("1", "0.75", "0"))
    for what in ("epoch_s", "compute_s", "wait_s", "link_s", "bytes"):
        first, mean, last = (getattr(found.taken, what) for found in (chunked, mixed, exact))
        assert mean == pytest.approx(0.75 * first + 0.25 * last), what
    assert exact.taken.bytes != chunked.taken.bytes
    assert mixed.peak_bytes == max(chunked.peak_bytes, exact.peak_bytes)
    vanilla = predict(replace(RUN, parts=2), counts, cluster, RATES).taken
    assert exact.taken.bytes == vanilla.bytes
    assert exact.taken.epoch_s == pytest.approx(vanilla.epoch_s, rel=0.01)


def test_the_period_of_a_schedule_is_found():
    assert period_of(replace(RUN, strategy=STRATEGIES.make("sylvie-a-bounded", refresh="7"))) == 7
    assert period_of(replace(RUN, strategy=STRATEGIES.make("pipegcn"))) == 1


def test_more_devices_help_until_links_do_not():
    names = [(name, strategy) for name, strategy in offered() if name in ("vanilla", "sylvie-a")]
    epochs = {}
    for ranks in (1, 2, 4, 8, 64):
        counts = even(SIZE, ranks, HALO, train=0.08, hops=RUN.model.hops)
        for choice in ranked(RUN, counts, machines(ranks, 10e9), RATES, near=plans.NEAR, strategies=names):
            epochs[choice.name, ranks] = choice.epoch_s
    quickest = {name: min(took for (one, _), took in epochs.items() if one == name) for name, _ in names}
    assert quickest["sylvie-a"] <= quickest["vanilla"]
    assert epochs["vanilla", 1] > epochs["sylvie-a", 64]


def test_a_fit_through_cuts_is_near_another_cut(tmp_path):
    graph, cuts = load("rmat:nodes=4096,edges=20000,features=8,classes=3,seed=1"), {}
    for parts in (2, 4, 8, 16):
        write_parts(tmp_path / str(parts), graph, partition(graph, parts))
        cuts[parts] = counted(tmp_path / str(parts), ())
    halo = Halo.fitted([cuts[2], cuts[4], cuts[8]])
    real = sum(rank.whole.halo for rank in cuts[16].ranks)
    fitted = even(cuts[2].graph, 16, halo).ranks
    assert abs(sum(rank.whole.halo for rank in fitted) - real) < 0.15 * real
    covered, of_fitted = (sum(rank.whole.covered.halo for rank in ranks) for ranks in (cuts[16].ranks, fitted))
    assert covered < real
    assert abs(of_fitted - covered) < 0.25 * covered


def test_rates_follow_their_tables(tmp_path):
    curve = Curve(sizes=(1.0, 100.0), values=(1.0, 4.0))
    assert curve.at(0.5) == 1.0
    assert curve.at(10) == pytest.approx(2.0)
    assert curve.at(1e9) == 4.0
    RATES.write(tmp_path / "r.json")
    assert Rates.read(tmp_path / "r.json") == RATES
    one, two = (RATES.seconds(Work("product", (1000, arcs, 64))) for arcs in (10**6, 2 * 10**6))
    assert 1.5 < two / one < 2
    assert RATES.seconds(Work("product", (1000, 10**6, 64)), 1.0) < one
    with pytest.raises(AssertionError, match="of an unknown kind"):
        RATES.seconds(Work("magic", (1,)))
    assert set(DEVICES) >= {"a100", "h200"}


def command(*arguments, cwd):
    line = [sys.executable, "-m", "fullgraph", *map(str, arguments)]
    done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=110)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def kept_rates(tmp_path, monkeypatch):
    """This machine's rates, as if they had been measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = local_machine.kept_at("cpu", 1)
    path.parent.mkdir(parents=True)
    replace(RATES, device="cpu").write(path)


GRAPH = "sbm:nodes=600,edges=3000,features=8,classes=3,seed=0"


@pytest.mark.cold
@pytest.mark.usefixtures("kept_rates")
def test_the_command_ranks_strategies(tmp_path):
    (tmp_path / "c.toml").write_text("machines = 2\ncores = 1\n[link]\nbits_per_s = 5e7\nlatency_s = 1e-4\n")
    code, out, _ = command("plan", GRAPH, "--cluster", "c.toml", "--json", "--page", "p.html", cwd=tmp_path)
    assert code == 0
    found = json.loads(out[out.index("{") :])
    assert found["ranks"] == 2
    names = [row["strategy"] for row in found["strategies"]]
    assert set(names) >= {"vanilla", "pipegcn", "sylvie-a", "mixgcn", "gnnpipe"}
    epochs = [row["epoch_s"] for row in found["strategies"] if not row["refused"]]
    assert epochs == sorted(epochs)
    page = (tmp_path / "p.html").read_text()
    assert "A step of" in page
    assert "sylvie-a" in page


@pytest.mark.usefixtures("kept_rates")
def test_bad_files_and_names_are_one_line(tmp_path):
    (tmp_path / "c.toml").write_text("machine = 2\n")
    code, _, err = command("plan", GRAPH, "--cluster", "c.toml", cwd=tmp_path)
    assert code == 2
    assert "did you mean machines?" in err
    (tmp_path / "d.toml").write_text("machines = [")
    code, _, err = command("plan", GRAPH, "--cluster", "d.toml", cwd=tmp_path)
    assert code == 2
    assert "d.toml is not a cluster file" in err
    (tmp_path / "e.toml").write_text('rates = "a1000"\n')
    code, _, err = command("plan", GRAPH, "--cluster", "e.toml", cwd=tmp_path)
    assert code == 2
    assert "did you mean a100?" in err


@pytest.mark.parametrize("ranks", [2, 4])
def test_graphs_of_a_few_nodes_are_predicted(ranks):
    """With so few rows, one way may read rows of another that reads none of its own: only one side expected a
    message.
    """
    there, run = Cluster(cores=1, ranks_per_machine=ranks), replace(RUN, strategy=STRATEGIES.make("gnnpipe-hybrid"))
    for edges in (20, 40, 60):
        graph = load(f"sbm:nodes=24,edges={edges},features=4,classes=2")
        assignment = partition(graph, ranks)
        counts = counted_parts([cut_parts(graph, assignment, rank) for rank in range(ranks)], RUN.model.hops)
        assert predict(replace(run, parts=ranks), counts, there, RATES).taken.epoch_s > 0


def test_a_model_of_more_layers_than_a_byte_counts_is_predicted():
    graph = load("sbm:nodes=200,edges=300,features=4,classes=2,train=0.1")
    run = Run(model=fg.nn.GraphSAGE(layers=130, hidden=4))
    parts = [cut_parts(graph, partition(graph, 2), rank) for rank in range(2)]
    assert len(counted_parts(parts, run.model.hops).ranks) == 2


@pytest.mark.usefixtures("kept_rates")
def test_auto_chooses_says_why_and_is_exact_unless_told(tmp_path):
    flags = ["--parts", 2, "--epochs", 2, "--hidden", 8, "--threads", 1, "--strategy", "auto"]
    code, _, err = command("train", GRAPH, *flags, "--out", "exact", cwd=tmp_path)
    assert code == 0, err
    assert "auto chose vanilla: its 2 epochs are guessed to take" in err, "a plan would take longer than the run"
    told = json.loads((tmp_path / "exact" / "result.json").read_text())["strategy"]
    assert told == "vanilla"
    startup = json.loads((tmp_path / "exact" / "result.json").read_text())["startup_s"]
    assert startup["choose"] < 1 < startup["import"] + startup["choose"] + 1
    (tmp_path / "slow.toml").write_text("machines = 2\ncores = 1\n[link]\nbits_per_s = 1e6\n")
    code, _, err = command(
        "train", GRAPH, *flags, "-o", "allow=stale,lossy", "-o", "cluster=slow.toml", "--out", "any", cwd=tmp_path
    )
    assert code == 0, err
    told = json.loads((tmp_path / "any" / "result.json").read_text())["strategy"]
    assert told.startswith(("sylvie", "varco"))
    config = json.loads((tmp_path / "any" / "config.json").read_text())
    assert "auto" not in json.dumps(config["strategy"])


def test_only_runs_that_take_longer_than_a_plan_are_planned(tmp_path, monkeypatch):
    write_parts(tmp_path, graph := load(GRAPH), partition(graph, 2))
    run = replace(RUN, parts=2)
    monkeypatch.setattr(plans, "planned", lambda *arguments: pytest.fail("planned"))
    assert plans.choose(run, STRATEGIES.make("auto"), tmp_path)[0] == "vanilla"
    long = replace(run, train=replace(run.train, epochs=10**5))
    with pytest.raises(pytest.fail.Exception, match="planned"):
        plans.choose(long, STRATEGIES.make("auto"), tmp_path)


@pytest.mark.cold
def test_a_probe_writes_a_file_that_a_plan_reads(tmp_path):
    code, out, err = command("probe", "--out", "c.toml", cwd=tmp_path)
    assert code == 0, err
    found = Cluster.read(tmp_path / "c.toml")
    assert (found.machines, found.ranks_per_machine) == (1, 2)
    assert 1e8 < found.inside.bits_per_s < 1e13
    assert 0 < found.inside.latency_s < 0.5
    assert found.inside.core_s_per_byte > 0
    assert found.memory_bytes > 0
    assert "wrote c.toml" in out


def choice(name, epoch_s, *, compute_s=1.0, wait_s=9.0, risk=EXACT):
    taken = Taken(epoch_s=epoch_s, compute_s=compute_s, wait_s=wait_s, link_s=0.0, bytes=10)
    return Choice(
        name=name, strategy=STRATEGIES.make("vanilla"), risk=risk, prediction=Prediction(taken=taken, peak_bytes=10)
    )


def shown(*choices):
    counts = even(SIZE, 2, HALO, train=0.6)
    return Plan(counts=counts, cluster=machines(2, 1e9), rates=RATES, choices=list(choices))


def test_a_plan_begins_with_a_verdict():
    late = Risk(steps=1)
    said = verdict(shown(choice("pipegcn", 1.0, risk=late), choice("mixgcn", 1.1), choice("vanilla", 5.0)))
    assert said.startswith(
        "Fastest exact strategy: mixgcn, 1.1 s per epoch. 2 are within the error of 9.5% of the fastest"
    )
    assert said.endswith(": pipegcn, mixgcn.")
    said = verdict(shown(choice("pipegcn", 1.0, risk=late), choice("vanilla", 5.0)))
    assert said == "Fastest exact strategy: vanilla, 5 s per epoch. Fastest of all: pipegcn, 1 s, up to 1 step old."
    said = verdict(shown(choice("a", 1.0), choice("b", 1.0)))
    assert said.endswith("All 2 strategies are within the error of 9.5% of the fastest.")


def test_ties_are_shown_as_ties():
    text = plan_table(shown(choice("vanilla", 1.0), choice("mixgcn", 1.05), choice("gnnpipe", 2.0)))
    assert "= 1 s" in text
    assert "= 1.05 s" in text
    assert "= 2 s" not in text
    assert "=" not in plan_table(shown(choice("vanilla", 1.0), choice("gnnpipe", 2.0)))


def test_bars_and_table_show_the_same_figures():
    """A rank may wait much longer than the busiest one, whose work and rest make the epoch."""
    page = plan_page(shown(choice("gnnpipe", 1.5, compute_s=1.3, wait_s=0.9), choice("vanilla", 9.0)))
    (bar,) = re.findall(r"<title>gnnpipe: rest ([^<]+)</title>", page)
    row = re.search(r'<th scope="row">gnnpipe</th>(.*?)</tr>', page)[1]
    assert re.findall("<td>(.*?)</td>", row)[:3] == ["1.5 s", "1.3 s", bar]
    assert bar == "200 ms"


def test_the_page_says_what_it_assumes():
    page = plan_page(shown(choice("vanilla", 1.0)))
    assert "What this assumes" in page
    assert "extrapolated from smaller partitions" in page
    assert "1 Gbit/s, 10 \N{MICRO SIGN}s until the first byte" in page
    assert "on GPUs it is unknown" in page
    assert 'class="error"' in page
    assert 'class="wide"' in page  # as large as the page's other text
