"""Help by subject, the table of strategies, and the reference of options: all from the same fields."""

import importlib.util
from dataclasses import fields
from pathlib import Path

import pytest

import fullgraph as fg
from fullgraph.axes import STRATEGIES
from fullgraph.cli import app
from fullgraph.commands.catalogue import kind_of
from fullgraph.commands.panels import OTHER, PANELS, panel_of
from fullgraph.train.config import TrainConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


def options_of_train():
    import typer.main

    return [
        parameter for parameter in typer.main.get_command(app).commands["train"].params if parameter.name != "graph"
    ]


def test_every_option_of_train_has_a_panel(say):
    missing = [option.name for option in options_of_train() if panel_of(option.name) == OTHER and option.name != "help"]
    assert missing == []
    listed = [name for names in PANELS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= {option.name for option in options_of_train()}
    page = say("train", "-h")[1]
    places = [page.index(f"\n{panel}:") for panel in PANELS]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["train", "report", "watch", "strategies", "plan", "compare"])
def test_h_is_help(say, command):
    assert say(command, "-h") == say(command, "--help")
    assert f"Usage: fullgraph {command}" in say(command, "-h")[1]


KINDS = {
    "vanilla": "exact", "none": "lossy", "pipegcn": "late", "pipegcn-f": "late", "pipegcn-g": "late",
    "pipegcn-gf": "late", "sylvie-s": "lossy", "sylvie-a": "late, lossy", "sylvie-a-bounded": "late, lossy",
    "varco": "lossy", "varco-slow": "lossy", "fixed": "lossy", "bns": "lossy", "adaqp": "lossy", "sancus": "late",
    "cd-r": "late", "mixgcn": "exact", "gnnpipe": "late", "gnnpipe-hybrid": "late", "free": "any", "auto": "exact",
    "steady": "late, lossy",
}  # fmt: skip


def test_strategies_say_what_they_cost(say):
    assert {name: kind_of(name) for name in STRATEGIES} == KINDS
    page = say("strategies")[1]
    lines = {line.split()[0]: line for line in page.splitlines() if line.strip() and line.split()[0] in STRATEGIES}
    assert set(lines) == set(STRATEGIES)
    for name, kind in KINDS.items():
        assert kind in lines[name]
    assert "arXiv:2303.01277" in lines["sylvie-a"]
    assert max(map(len, page.splitlines()[:-2])) <= 80


def test_one_strategy_shows_its_options(say):
    page = say("strategies", "sylvie-a")[1]
    for name, value in STRATEGIES.options("sylvie-a").items():
        assert f"  {name}={str(value).lower() if isinstance(value, bool) else value}" in page
    assert "late, lossy; Sylvie, arXiv:2303.01277" in page
    code, _, err = say("strategies", "silvie-a")
    assert code == 2
    assert "sylvie-a" in err


def test_the_reference_of_options_is_that_of_the_code():
    spec = importlib.util.spec_from_file_location("options", DOCS / "options.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.section() in module.PAGE.read_text(), "run: python docs/options.py"
    assert all(f"| `{field.name}` |" in module.section() for field in fields(TrainConfig))


def test_the_configuration_is_public():
    assert fg.TrainConfig is TrainConfig
