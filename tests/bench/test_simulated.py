"""The campaigns of benchmarks/: simulated ranks score like real ones, and a failed training ends no other."""

import argparse
import json
import os
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
GRAPH = "sbm:nodes=150,edges=600,features=6,classes=3,seed=4"
FLAGS = "--model gcn --layers 3 --hidden 8 --norm none --input-dropout --metric accuracy --epochs 6 --eval-every 2"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["vanilla", "sylvie-a -o bits=2", "gnnpipe -o chunks=4 -o gradients=last"])
def test_simulated_ranks_write_what_the_command_writes(strategy, tmp_path):
    from common import fullgraph
    from simulated import train

    cut = tmp_path / "cut"
    fullgraph("partition", GRAPH, "--parts", 2, "--partitioner", "random", "--features", "row", "--out", cut)
    arguments = [str(cut), "--strategy", *strategy.split(), "--seed", "3", *FLAGS.split(), "--threads", "1"]
    train(arguments, tmp_path / "threads")
    fullgraph("train", *arguments, "--out", tmp_path / "ranks")
    threads, ranks = (records(tmp_path / name) for name in ("threads", "ranks"))
    assert len(ranks) == 6
    assert threads == ranks


def records(folder):
    """All but seconds, and the checksum over them."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    differ = ("epoch_s", "wait_s", "row_wait_s", "checksum")
    return [{name: value for name, value in line.items() if name not in differ} for line in lines]


@pytest.mark.timeout(300)
def test_one_that_fails_is_named_and_the_next_call_goes_on(tmp_path, capsys):
    """Trainings on a partitioned graph; one of them has an option that does not exist."""
    from campaign import Cut, Trial, carry_out

    cut, flags = Cut(GRAPH, "row", "random", 2), "--layers 2 --hidden 4 --epochs 2 --eval-every 1"
    trials = [Trial(cut, name, 0, flags) for name in ("vanilla", "varco -o slop=5", "pipegcn")]
    shown = []
    with pytest.raises(SystemExit) as end:
        carry_out(trials, options_for(tmp_path), shown.append)
    assert end.value.code == 1
    assert sorted(trial.strategy for trial in shown[0]) == ["pipegcn", "vanilla"]
    failures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("FAILED ")]
    assert len(failures) == 1
    assert failures[0].startswith(f"FAILED {trials[1].command}: InputError: ")
    assert "slop" in failures[0].partition(": ")[2]
    results = tmp_path / "results.jsonl"
    results.write_text(results.read_text()[:-9])  # killed while writing: the second of the two is lost
    carry_out([trials[0], trials[2]], options_for(tmp_path), shown.append)
    assert all(shown[1][trial].trace == outcome.trace for trial, outcome in shown[0].items())
    assert len(results.read_text().splitlines()) == 2
    assert capsys.readouterr().err.count("val ") == 1


class Piece(NamedTuple):
    seed: int

    @property
    def command(self) -> str:
        return f"piece {self.seed}"


def work_on(piece, died):
    """Piece 1 fails; piece 2 kills its process at the first attempt."""
    from campaign import Outcome, Score

    if piece.seed == 1:
        raise ValueError("one")
    if piece.seed == 2 and not died.exists():
        died.touch()
        os._exit(3)
    return Outcome(piece.command, [Score(0, 0.5, 0.5)])


@pytest.mark.timeout(300)
def test_one_that_dies_takes_no_other_along(tmp_path, capsys):
    from campaign import complete

    pieces, work, shown = [Piece(seed) for seed in range(5)], partial(work_on, died=tmp_path / "died"), []
    with pytest.raises(SystemExit):
        complete(pieces, work, options_for(tmp_path), shown.append)
    assert sorted(piece.seed for piece in shown[0]) == [0, 3, 4]
    told = capsys.readouterr().err
    assert "FAILED piece 1: ValueError: one" in told
    assert "FAILED piece 2: its process died, exit code 3" in told
    complete(pieces, work, options_for(tmp_path, limit_s=0.0), shown.append)
    assert sorted(piece.seed for piece in shown[1]) == [0, 3, 4]
    assert "2 of 5 trainings are not in" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        complete(pieces, work, options_for(tmp_path), shown.append)
    assert sorted(piece.seed for piece in shown[2]) == [0, 2, 3, 4]


def test_intervals_are_student_s():
    from campaign import half_width, spread

    scores = [0.5, 0.52, 0.54, 0.56, 0.58]  # standard deviation sqrt(0.001)
    assert half_width(scores) == pytest.approx(2.776 * 0.001**0.5 / 5**0.5)
    assert spread(scores) == "54.00 ± 3.93"


def test_a_trace_keeps_what_a_budget_could_buy():
    """The best evaluation within any number of bytes equals that of the whole trace, and all bytes are counted."""
    from campaign import Outcome, Score, trace_of

    vals = [0.3, 0.5, 0.4, 0.5, 0.6, 0.2, 0.6]
    records = [{"bytes": 10, "val": val, "test": index / 10} for index, val in enumerate(vals)]
    records.insert(3, {"bytes": 5, "val": None, "test": None})
    whole, sent = [], 0
    for record in records:
        sent += record["bytes"]
        if record["val"] is not None:
            whole.append(Score(sent, record["val"], record["test"]))
    kept = Outcome("", trace_of(records))
    assert [score.val for score in kept.trace] == [0.3, 0.5, 0.6, 0.6]
    assert kept.bytes == sent == 75
    assert all(kept.best(budget) == Outcome("", whole).best(budget) for budget in range(10, 80))
    assert trace_of([]) == []


def options_for(tmp_path, **given):
    known = {"results": tmp_path / "results.jsonl", "jobs": 2, "limit_s": inf, "report": False, "cut_only": False}
    known |= {"cuts": tmp_path / "cuts", "data": tmp_path, "device": "cpu", "simulated": True}
    return argparse.Namespace(**known | given)


@pytest.mark.timeout(300)
def test_a_paper_s_page_gets_the_tables_of_its_campaigns(tmp_path, monkeypatch):
    """From existing results, without training; the text around the tables stays."""
    from campaign import Trial
    from campaigns import paper_pages
    from campaigns.wire_accuracy import CASES, COMMON
    from common import ROOT

    cut = next(cut for cut in CASES if cut.graph == "pubmed")
    scores = {
        Trial(cut, name, 0, f"{COMMON} {CASES[cut]}"): test for name, test in (("vanilla", 0.75), ("pipegcn", 0.74))
    }
    lines = [{"command": trial.command, "trace": [[9, 0.5, test]]} for trial, test in scores.items()]
    results = tmp_path / "wire_accuracy.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = tmp_path / "docs" / "papers" / "pipegcn.md"
    page.parent.mkdir(parents=True)
    page.write_text((ROOT / "docs" / "papers" / "pipegcn.md").read_text())
    before, after = page.read_text().split(paper_pages.OPENS)[0], page.read_text().split(paper_pages.CLOSES)[1]
    monkeypatch.setattr(paper_pages, "DOCS", tmp_path / "docs")
    monkeypatch.setattr("sys.argv", ["paper_pages", "pipegcn", "--report", "--write", "--results", str(tmp_path)])
    paper_pages.main()
    text = page.read_text()
    assert text.startswith(before)
    assert text.endswith(after)
    assert "| pubmed | pipegcn | 50.00 | 74.00 | -1.00 | 9 B | 1 | BELOW |" in text
    assert "musae_github | 86.66" not in text


def test_every_page_has_a_place_for_its_tables():
    from campaigns import paper_pages

    for paper, campaigns in paper_pages.PAGES.items():
        text = (paper_pages.DOCS / "papers" / f"{paper}.md").read_text()
        assert text.index(paper_pages.OPENS) < text.index(paper_pages.CLOSES)
        assert f"benchmarks/campaign.py paper_pages {paper} " in text
        assert all((BENCHMARKS / "campaigns" / f"{campaign.split()[0]}.py").exists() for campaign in campaigns)
