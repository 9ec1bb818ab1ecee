"""Did it learn: evaluation.json equals counts made by hand from the run's predictions, and the page says so."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import fullgraph as fg
from fullgraph.lab.html import read_run
from fullgraph.lab.html.learned import verdict
from fullgraph.lab.html.one import page
from fullgraph.report.evaluation import MOST_CLASSES, read_evaluation
from fullgraph.tasks.evaluation import NUM_BINS, evaluation_of
from fullgraph.tasks.metrics import accuracy, micro_f1, rmse
from fullgraph.testing import run_threads
from fullgraph.transport import Key, SingleRank
from tests.support import random_graph

ROWS = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    graph = random_graph(nodes=200, arcs=900)
    folder = tmp_path_factory.mktemp("learned") / "run"
    return graph, fg.train(graph, parts=2, epochs=12, eval_every=4, seed=1, out=folder)


def test_a_runs_confusion_is_that_of_its_predictions(run):
    graph, done = run
    found, test = read_evaluation(done.folder), np.asarray(graph.test_mask).reshape(-1).astype(bool)
    y, said = np.asarray(graph.y)[test], done.predictions[test]
    classes = len(found.labelled)
    by_hand = np.zeros((classes, classes), dtype=int)
    np.add.at(by_hand, (y, said), 1)
    assert found.confusion == tuple(map(tuple, by_hand.tolist()))
    assert found.right == tuple(np.diag(by_hand).tolist())
    assert found.rows["test"] == len(y)
    assert sum(found.right) / len(y) == pytest.approx(done.result["test"])
    train = np.asarray(graph.train_mask).reshape(-1).astype(bool)
    commonest = np.bincount(np.asarray(graph.y)[train], minlength=classes).argmax()
    assert found.constant["test"] == pytest.approx(float((y == commonest).mean()))


def test_the_page_says_whether_it_learned(run):
    past = read_run(run[1].folder)
    own, base = past.outcome.test, past.evaluation.constant["test"]
    assert f"{own:.4f}" in verdict(past)
    assert f"would score {base:.4f}" in verdict(past)
    records = [replace(r, test=base) if r.test is not None else r for r in past.records]
    assert verdict(replace(past, records=records)).startswith("No: ")
    records = [replace(r, test=1.0) if r.test is not None else r for r in past.records]
    assert verdict(replace(past, records=records)).startswith("Yes: ")
    text = page(past)
    assert f"best: epoch {past.outcome.best_epoch}" in text
    assert "Confusion matrix" in text
    assert "precision" in text


def test_questions_are_answered_in_their_order(run):
    text = page(read_run(run[1].folder))
    heads = ["Did it learn?", "What ran", "Where the time went", "What crossed", "What to try next"]
    places = [text.index(f">{head}</h2>") for head in heads]
    assert places == sorted(places)


def rows_of(kind, rank, size):
    """The rows of a rank, by split: outputs and targets that all ranks draw alike."""
    g = torch.Generator().manual_seed(3)  # ranks are threads: a global generator would be drawn from by all of them
    out, mine = torch.randn(ROWS, 5, dtype=torch.float64, generator=g), torch.arange(ROWS) % size == rank
    numbers, pairs = torch.randn(ROWS, 5, dtype=torch.float64, generator=g), torch.rand(ROWS, 5, generator=g) < 0.5
    targets = {"classes": torch.randint(0, 5, (ROWS,), generator=g), "numbers": numbers, "pairs": pairs.double(),
               "sets": (torch.rand(ROWS, 5, generator=g) < 0.3).double()}  # fmt: skip
    target = targets[kind]
    splits = {"train": torch.arange(ROWS) < 20, "val": torch.arange(ROWS) % 7 == 0, "test": torch.arange(ROWS) >= 40}
    return {split: (out[rows & mine], target[rows & mine]) for split, rows in splits.items()}


METRICS = {"classes": accuracy, "sets": micro_f1, "numbers": rmse, "pairs": rmse}


@pytest.mark.parametrize("kind", METRICS)
def test_ranks_count_what_one_process_counts(kind):
    def body(transport):
        return evaluation_of(kind, rows_of(kind, transport.rank, transport.size), METRICS[kind], transport, 0)

    alone = body(SingleRank())
    several = run_threads(3, body)
    for found in several:
        assert replace(found, constant={}, limits=()) == replace(alone, constant={}, limits=())
        assert found.constant == pytest.approx(alone.constant, abs=1e-12)
        assert found.limits == pytest.approx(alone.limits, abs=1e-12)


def test_the_constant_answer_is_the_best_one():
    rows = rows_of("numbers", 0, 1)
    found = evaluation_of("numbers", rows, rmse, SingleRank(), 0)
    mean = rows["train"][1].mean(0, keepdim=True)
    for split, (_, target) in rows.items():
        assert found.constant[split] == pytest.approx(float((target - mean).square().mean().sqrt()))
    rows = rows_of("sets", 0, 1)
    found = evaluation_of("sets", rows, micro_f1, SingleRank(), 0)
    often = (rows["train"][1].mean(0, keepdim=True) > 0.5).double() - 0.5
    by_hand = micro_f1(often.expand(len(rows["test"][1]), -1), rows["test"][1], SingleRank(), Key("x", 0))
    assert found.constant["test"] == pytest.approx(by_hand)


def test_every_error_is_in_a_bar():
    rows = rows_of("numbers", 0, 1)
    found = evaluation_of("numbers", rows, rmse, SingleRank(), 0)
    assert len(found.bins["error"]) == NUM_BINS
    assert sum(found.bins["error"]) == rows["test"][1].numel()


def test_many_classes_leave_the_matrix_out():
    classes = MOST_CLASSES + 1
    target = torch.arange(3 * classes) % classes
    out = torch.nn.functional.one_hot((target + (target == 2).long()) % classes, classes).double()
    found = evaluation_of("classes", dict.fromkeys(("train", "val", "test"), (out, target)), accuracy, SingleRank(), 0)
    assert found.confusion == ()
    assert found.right[2] == 0
    assert found.predicted[3] == 6
    assert sum(found.right) == 3 * (classes - 1)


def test_a_users_task_may_count_nothing(tmp_path):
    """Its own function for the output: nothing tells what is right."""
    from fullgraph.tasks.nodes import NodeTask

    task = NodeTask(accuracy, None, lambda out, y: y, lambda out: {})
    assert task.evaluation(None, None) is None


def test_link_prediction_has_two_histograms(tmp_path):
    done = fg.train(
        random_graph(nodes=120, arcs=600), task="link", parts=2, epochs=2, eval_every=1, out=tmp_path / "run"
    )
    found = json.loads((done.folder / "evaluation.json").read_text())
    assert found["constant"]["test"] == pytest.approx(0.5)
    assert sum(map(sum, found["bins"].values())) == found["rows"]["test"]
    assert "Probability of pairs that are edges" in page(read_run(done.folder))


def test_equal_scores_are_no_reason_to_say_yes(run):
    """Two standard errors above the constant answer are needed."""
    past = read_run(run[1].folder)
    base, rows = past.evaluation.constant["test"], past.evaluation.rows["test"]
    noise = (base * (1 - base) / rows) ** 0.5

    def at(score):
        return verdict(
            replace(past, records=[replace(r, test=score) if r.test is not None else r for r in past.records])
        )

    assert at(base + 1.9 * noise).startswith("No: ")
    assert at(base + 2.1 * noise).startswith("Yes: ")


def test_a_score_of_which_less_is_better(run):
    past = read_run(run[1].folder)
    outcome = replace(past.outcome, metric="rmse", smaller_is_better=True)
    evaluation = replace(past.evaluation, kind="numbers", constant={"test": 2.0})
    said = partial(replace, past, outcome=outcome, evaluation=evaluation)
    better = [replace(r, test=1.0) if r.test is not None else r for r in past.records]
    worse = [replace(r, test=3.0) if r.test is not None else r for r in past.records]
    assert verdict(said(records=better)).startswith("Yes: rmse 1.0000")
    assert verdict(said(records=worse)).startswith("No: rmse 3.0000")
