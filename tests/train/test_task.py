"""Losses and scores: sums over ranks equal one process; scores equal scikit-learn's."""

import math
from itertools import pairwise

import pytest
import torch

from fullgraph.errors import InputError
from fullgraph.tasks import METRICS, metric_name, node_task
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.optimizer import learning_rate
from fullgraph.transport import Key

sklearn = pytest.importorskip("sklearn.metrics")


def score(transport, metric, logits, target):
    """Rank r scores every size-th row; the last rank of three gets none of the first sixth."""
    rows = torch.arange(transport.rank, len(target), transport.size)
    return METRICS[metric](logits[rows], target[rows], transport, Key("score", 0))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_scikit_learn(ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(101, 2, generator=generator).mul(4).round().div(4)  # many ties
    binary = torch.randint(0, 2, (101,), generator=generator)
    many = torch.randint(0, 2, (101, 2), generator=generator).float()
    wanted = {
        "accuracy": (binary, sklearn.accuracy_score(binary, logits.argmax(1))),
        "roc_auc": (binary, sklearn.roc_auc_score(binary, logits[:, 1] - logits[:, 0])),
        "micro_f1": (many, sklearn.f1_score(many, logits > 0, average="micro")),
    }
    for metric, (target, want) in wanted.items():
        for got in run_threads(ranks, score, metric, logits, target):
            assert got == pytest.approx(float(want), abs=1e-12), metric
    multilabel_auc = run_threads(ranks, score, "roc_auc", logits, many)[0]
    assert multilabel_auc == pytest.approx(float(sklearn.roc_auc_score(many, logits)), abs=1e-12)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("columns", [1, 3])
def test_scores_of_real_numbers_equal_scikit_learn(ranks, columns):
    generator = torch.Generator().manual_seed(columns)
    target = 100 + torch.randn(97, columns, generator=generator, dtype=torch.float64)
    values = target + torch.randn(97, columns, generator=generator, dtype=torch.float64)
    wanted = {
        "rmse": sklearn.mean_squared_error(target, values) ** 0.5,
        "mae": sklearn.mean_absolute_error(target, values),
        "r2": sklearn.r2_score(target, values),
    }
    for metric, want in wanted.items():
        for got in run_threads(ranks, score, metric, values, target):
            assert got == pytest.approx(float(want), abs=1e-12), metric
    constant = torch.ones(97, columns)
    assert all(math.isnan(got) for got in run_threads(ranks, score, "r2", values, constant))


@pytest.mark.parametrize("ranks", [1, 3])
def test_mrr_is_the_mean_of_reciprocal_ranks(ranks):
    scores = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).mul(2).round()  # many ties
    wanted = 0.0
    for edge, *others in scores.tolist():
        wanted += 1 / (1 + sum(s > edge for s in others) + sum(s == edge for s in others) / 2) / 50
    for got in run_threads(ranks, score, "mrr", scores, torch.zeros(50, 8)):
        assert got == pytest.approx(wanted, abs=1e-12)


LOSSES = {
    "classes": ({}, torch.nn.CrossEntropyLoss()),
    "multi-label": ({"multilabel": True}, torch.nn.BCEWithLogitsLoss()),
    "mse": ({"real": True}, torch.nn.MSELoss()),
    "mae": ({"real": True, "loss": "mae"}, torch.nn.L1Loss()),
    "huber": ({"real": True, "loss": "huber"}, torch.nn.HuberLoss()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_the_loss_add_up(name):
    options, plain = LOSSES[name]
    task, logits = node_task(classes=3, **options), torch.randn(20, 3, dtype=torch.float64)
    target = {"classes": torch.randint(0, 3, (20,)), "multi-label": torch.randint(0, 2, (20, 3)).double()}
    target = target.get(name, torch.randn(20, 3, dtype=torch.float64))
    whole = task.loss(logits, target, 20)
    parts = [task.loss(logits[a:b], target[a:b], 20) for a, b in [(0, 0), (0, 7), (7, 20)]]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole, plain(logits, target), rtol=1e-12, atol=1e-12)


def squares(logits, target):
    return ((logits - target) ** 2).sum()


def mean_square(logits, target):
    return ((logits - target) ** 2).mean()


def transposed(logits, target):
    return logits.T


def test_a_loss_of_ones_own_is_a_number_a_row_or_a_sum():
    logits, target = torch.randn(12, 2), torch.randn(12, 2)
    task = node_task(classes=2, real=True, loss=squares)
    torch.testing.assert_close(task.loss(logits, target, 12), squares(logits, target) / 12)
    with pytest.raises(InputError, match=r"mean_square returns the mean of its rows.*reduction='none'"):
        node_task(classes=2, real=True, loss=mean_square).loss(logits, target, 12)
    with pytest.raises(InputError, match=r"transposed returned a Tensor of \w+, \(2, 12\) for 12 rows: return one"):
        node_task(classes=2, real=True, loss=transposed).loss(logits, target, 12)


def test_a_metric_must_fit_the_labels():
    assert metric_name(node_task(classes=2, metric="roc_auc")) == "roc_auc"
    with pytest.raises(InputError, match="does not fit 5-class data; use one of: accuracy"):
        node_task(classes=5, metric="roc_auc")
    with pytest.raises(InputError, match="loss 'mse' does not fit 5-class data; use one of: cross_entropy"):
        node_task(classes=5, loss="mse")
    with pytest.raises(InputError, match="metric 'accuracy' does not fit real numbers; use one of: rmse, mae, r2"):
        node_task(classes=1, real=True, metric="accuracy")


def test_learning_rates_are_functions_of_the_epoch():
    cosine = [learning_rate(TrainConfig(epochs=10, lr=1.0, lr_schedule="cosine"), t) for t in range(10)]
    assert cosine[0] == 1.0
    assert cosine[5] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(cosine))
    step = [learning_rate(TrainConfig(epochs=9, lr=1.0, lr_schedule="step"), t) for t in range(9)]
    assert step == pytest.approx([1.0] * 3 + [0.1] * 3 + [0.01] * 3)
