"""A matrix is a value: its contents, its spelling, and the inputs that are refused before any measurement."""

import os

import pytest

from fullgraph import nn, recipes
from fullgraph.errors import InputError
from fullgraph.lab.bench import hosts
from fullgraph.lab.bench.matrix import PEERS, Group, Matrix, Point, Settings, bits_per_second, model_of, strategy_of
from fullgraph.lab.commands import measuring as command


def test_every_combination_is_a_point_once():
    matrix = Matrix(
        graph=("a", "b", "a"), model=("m",), strategy=("s", "t", "s"), ranks=(2, 4), rate=("loopback", "1gbit")
    )
    points = list(matrix.points())
    assert len(points) == len(set(points)) == 2 * 1 * 2 * 2 * 2
    assert points[0] == Point(Group("a", "m", 2, "loopback"), "s")
    graphs = [point.group.graph for point in points]
    assert graphs == sorted(graphs)  # one graph after the other: each is read once


def test_one_rank_has_no_link_and_peers_have_one_process():
    matrix = Matrix(ranks=(1, 2), rate=("loopback", "1gbit"), peers=True)
    groups = [point.group[2:] for point in matrix.points() if point.strategy not in PEERS]
    assert groups == [(1, "loopback"), (2, "loopback"), (2, "1gbit")]
    assert [point.strategy for point in matrix.points() if point.strategy in PEERS] == list(PEERS)


def test_models_and_strategies_are_spelled_with_their_options(tmp_path):
    assert model_of("sage") == nn.GraphSAGE()
    assert model_of("gcn:layers=16,hidden=64,norm=layer") == nn.GCN(layers=16, hidden=64, norm="layer")
    assert strategy_of("sylvie-a bits=2") == recipes.sylvie_a(bits=2)
    assert strategy_of("gnnpipe cut=1,2 freeze=3") == recipes.gnnpipe(cut=(1, 2), freeze=3)
    own = tmp_path / "mine.py"
    own.write_text(
        "from dataclasses import dataclass\nfrom fullgraph import nn\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(nn.GCN):\n    pass\n"
    )
    assert model_of(f"{own}:Mine").layers == 3
    assert model_of(f"{own}:Mine:layers=5").layers == 5


@pytest.mark.parametrize(
    ("rate", "bits"), [("loopback", None), ("1gbit", 1e9), ("200mbit", 2e8), ("2.5GBit", 2.5e9), ("50kbit", 5e4)]
)
def test_rates(rate, bits):
    assert bits_per_second(rate) == bits


@pytest.mark.parametrize(
    "rate", ["", "fast", "1", "1gb", "-1gbit", "0mbit", "1 gbit", "infgbit", "40gbit", "1e9gbit", "0.5kbit"]
)
def test_bad_rates(rate):
    with pytest.raises(InputError, match="such as 200mbit"):
        bits_per_second(rate)


@pytest.mark.parametrize("field", ["epochs", "rounds"])
def test_settings_are_checked(field):
    with pytest.raises(InputError, match=field):
        Settings(**{field: 0})


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--graph", "sbn:nodes=10"], "did you mean sbm?"),
        (["--graph", "sbm:node=10"], "did you mean nodes?"),
        (["--graph", "nothing.npz"], "is not the name of a graph"),
        (["--model", "saeg"], "did you mean sage?"),
        (["--model", "gcn:layer=2"], "did you mean layers?"),
        (["--model", "gcn:layers=2,wide"], "KEY=VALUE"),
        (["--strategy", "pipgcn"], "did you mean pipegcn?"),
        (["--strategy", "sylvie-a bit=1"], "did you mean bits?"),
        (["--strategy", "sylvie-a 1"], "KEY=VALUE"),
        (["--strategy", ""], "strategy '' is unknown"),
        (["--rate", "1gb"], "200mbit"),
        (["--ranks", "0"], "at least 1"),
        (["--ranks", "two"], "--ranks"),
        (["--device", "gpu"], "one of cpu, cuda"),
        (["--epochs", "0"], "epochs"),
        (["--config", "bad.toml"], "did you mean ranks?"),
        (["--config", "run.json"], "TOML"),
        (["--config", "empty.toml"], "no strategy is given"),
    ],
)
def test_bad_input_is_one_line_and_measures_nothing(say, tmp_path, args, word):
    (tmp_path / "bad.toml").write_text("rank = [2]\n")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "empty.toml").write_text("strategy = []\n")
    code, out, err = say("bench", *args)
    assert (code, out) == (2, "")
    assert err.startswith("fullgraph: error: ")
    assert len(err.splitlines()) == 1
    assert word in err
    assert not (tmp_path / "runs").exists()


def test_links_need_root(say, monkeypatch):
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
    code, _, err = say("bench", "--rate", "1gbit")
    assert code == 2
    assert "need root; run it with sudo" in err


@pytest.fixture
def carried(monkeypatch):
    """Record the campaign's arguments instead of running it."""
    from fullgraph.lab.bench import campaign

    asked = []

    class Nothing:
        cells, failed = {}, {}

        def failed_lines(self):
            return {}

    monkeypatch.setattr(campaign, "carry_out", lambda *given: asked.append(given) or Nothing())
    return asked


def test_a_file_holds_the_same_names_and_the_command_line_wins(say, tmp_path, carried):
    (tmp_path / "matrix.toml").write_text(
        'graph = ["demo", "sbm:nodes=99,edges=300"]\nmodel = "gcn:layers=2,hidden=8"\nranks = [2, 4]\nrounds = 7\n'
        'strategy = ["vanilla", "sylvie-a bits=2"]\npeers = true\nall-rows = true\n'
    )
    assert say("bench", "--config", "matrix.toml", "--ranks", 3, "--out", "there")[0] == 0
    matrix, settings, out, _ = carried[0]
    assert matrix == Matrix(
        graph=("demo", "sbm:nodes=99,edges=300"), model=("gcn:layers=2,hidden=8",), ranks=(3,),
        strategy=("vanilla", "sylvie-a bits=2"), peers=True,
    )  # fmt: skip
    assert settings == Settings(rounds=7, all_rows=True)
    assert os.fspath(out) == "there"


def test_the_command_is_listed_with_an_example(say):
    assert "bench" in say("--help")[1]
    page = " ".join(say("bench", "--help")[1].split())
    assert "Example: fullgraph bench" in page
    assert command.bench.__doc__.splitlines()[0].split(";")[0] in page
