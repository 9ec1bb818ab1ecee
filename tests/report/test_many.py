"""Runs side by side: differing options, seeds, one front per graph, ties."""

import pytest

from fullgraph.lab.html.many import Worth, front, grouped, page
from fullgraph.report.settings import Spread, by_seed, differing
from tests.report.test_pages import made, record


def run(folder, name, val, seed=0, *, epoch_s=1.0, **about):
    return made(folder / name, [record(1, None, epoch_s), record(2, val, epoch_s)], seed=seed, **about)


def test_graphs_have_fronts_of_their_own(tmp_path):
    runs = [run(tmp_path, "small", 0.9, graph="small"), run(tmp_path, "large", 0.5, epoch_s=9.0, graph="large")]
    text = page(runs)
    assert text.count('class="best">yes') == 2  # neither is beaten by a run on another graph
    assert "each graph has its section" in text
    assert "The runs on small" in text
    assert "The runs on large" in text


def test_seeds_are_one_row_with_an_interval(tmp_path):
    runs = [run(tmp_path, f"s{seed}", 0.8 + 0.01 * seed, seed) for seed in range(3)]
    (group,) = grouped(runs)
    assert len(group.runs) == 3
    assert group.val.mean == pytest.approx(0.81)
    assert group.val.half == pytest.approx(4.302653 * 0.01 / 3**0.5, rel=1e-5)
    assert "0.8100 \N{PLUS-MINUS SIGN} 0.0248" in page(runs)


def test_a_tie_in_the_score_is_decided_by_the_costs():
    slow, quick = Worth(0.8967, 2.0, 10.0, 0.002), Worth(0.8965, 1.0, 10.0, 0.002)
    assert front([slow, quick]) == [False, True]
    assert front([slow._replace(noise=0.0), quick._replace(noise=0.0)]) == [True, True]
    assert front([slow, quick._replace(seconds=1.99)]) == [True, True]  # 0.5 % of time is no difference


def test_options_that_differ_are_columns(tmp_path):
    runs = [run(tmp_path, "a", 0.9, lr=0.1), run(tmp_path, "b", 0.8, lr=0.2)]
    text = page(runs)
    assert ">lr</th>" in text
    assert ">epochs</th>" not in text  # equal


def test_options_of_another_strategy_do_not_differ():
    late = {"strategy.name": "pipegcn", "strategy.lag": "1", "train.lr": "0.1"}
    exact = {"strategy.name": "vanilla", "strategy.codec.name": "full", "train.lr": "0.1"}
    assert differing([late, exact]) == []
    assert differing([late, {**late, "strategy.lag": "2"}, exact]) == ["strategy.lag"]
    assert differing([late, {**exact, "train.lr": "0.2"}]) == ["train.lr"]
    assert by_seed([{**late, "train.seed": str(seed)} for seed in range(2)] + [exact]) == [[0, 1], [2]]


def test_one_seed_has_no_interval():
    assert Spread.of([0.5]) == Spread(0.5, None)
    assert str(Spread.of([0.5])) == "0.5000"


def test_bytes_are_those_of_rows_and_of_weights(tmp_path):
    from fullgraph.lab.html.many import worth_of

    assert worth_of(run(tmp_path, "a", 0.9)).bytes == 2 * (10 + 1)
