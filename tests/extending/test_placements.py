"""A placement of one's own, by name: one file outside of the package."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fullgraph as fg
from fullgraph.errors import InputError
from fullgraph.placement import Mixture, Partitioned
from fullgraph.recipes import STRATEGIES
from fullgraph.reference import load
from fullgraph.testing import run_threads
from tests.support import CASES, assert_same, dense_trace, random_graph, train_trace

IN_GROUPS = f"{Path(__file__).resolve().parents[2] / 'docs' / 'extending' / 'in_groups.py'}:InGroups"
SAGE, CASE, STEPS = fg.nn.GraphSAGE(layers=3, hidden=16, dropout=0.5), CASES["directed"], 5


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_equals_its_equation(ranks):
    graph, _ = CASE(1)
    ids, y = torch.from_numpy(np.flatnonzero(graph.train_mask[:, 0])), torch.from_numpy(np.array(graph.y))

    def objective(step, out):
        read = ids[ids % 3 == step % 3]
        return F.cross_entropy(out[read], y[read])

    placement = lambda **options: load(IN_GROUPS)(groups=3, **options)  # noqa: E731
    traces = run_threads(ranks, partial(train_trace, placement=placement), CASE, SAGE, STEPS)
    assert_same(traces, *dense_trace(graph, SAGE, STEPS, objective=objective))


def test_a_run_resumes_from_elsewhere(tmp_path, monkeypatch):
    strategy = STRATEGIES.make("free", placement=IN_GROUPS, groups="3", schedule="sync", codec="full")
    graph, options = random_graph(), {"strategy": strategy, "parts": 2, "checkpoint_every": 1}
    whole = fg.train(graph, epochs=4, out=tmp_path / "whole", **options)
    fg.train(graph, epochs=2, schedule_epochs=4, out=tmp_path / "run", **options)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["strategy"]["placement"] == {"name": IN_GROUPS, "groups": 3}
    assert list(config["files"]) == [IN_GROUPS.rpartition(":")[0]]
    monkeypatch.chdir("/")
    run = fg.resume(tmp_path / "run", epochs=4)
    assert [record.loss for record in run.metrics] == [record.loss for record in whole.metrics]


def test_a_name_alone_is_read():
    """As config.json of an older version has it."""
    for name, kind in {"partitioned": Partitioned, "mixture": Mixture}.items():
        assert STRATEGIES.read({"name": "free", "placement": name}, "config.json").layout() == kind(sends="input")


WRONG = {
    "in_group.py:InGroups": "in_group.py: it does not exist",
    "mine.py:NoPlacement": "mine.py:7: mine.py:NoPlacement is no placement: it has no check, place",
    "mine.py:NoShard": "mine.py:13: NoShard.place returned None: return a fullgraph.placement.Shard",
    "mine.py:Breaks": "mine.py:19: ZeroDivisionError",
    "tiles": "placement 'tiles' is unknown; known: partitioned, mixture; or name your own",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("""
from dataclasses import dataclass

from fullgraph.placement import Partitioned


@dataclass(frozen=True)
class NoPlacement:
    pass

@dataclass(frozen=True, kw_only=True)
class NoShard(Partitioned):
    def place(self, part, transport, wire, aggregation):
        pass

@dataclass(frozen=True, kw_only=True)
class Breaks(Partitioned):
    def place(self, part, transport, wire, aggregation):
        1 / 0
""")
    with pytest.raises(InputError) as caught:
        fg.train(random_graph(), strategy=STRATEGIES.make("free", placement=name), parts=2, epochs=2, out="run")
    assert WRONG[name] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_run_sets_is_no_option():
    with pytest.raises(InputError, match="has no option inductive"):
        STRATEGIES.make("free", placement="partitioned", inductive="true")
