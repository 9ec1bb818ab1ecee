"""Losses and scores: sums over ranks equal one process; scores equal scikit-learn's."""

from itertools import pairwise

import pytest
import torch

from fullgraph.errors import InputError
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from fullgraph.train.schedule import learning_rate
from fullgraph.train.task import METRICS, task_of
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


@pytest.mark.parametrize("multilabel", [False, True])
def test_parts_of_the_loss_add_up(multilabel):
    task = task_of(multilabel=multilabel, classes=3)
    logits = torch.randn(20, 3, dtype=torch.float64)
    target = torch.randint(0, 2, (20, 3)).double() if multilabel else torch.randint(0, 3, (20,))
    whole = task.loss(logits, target, 20)
    parts = [task.loss(logits[a:b], target[a:b], 20) for a, b in [(0, 0), (0, 7), (7, 20)]]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
    plain = torch.nn.BCEWithLogitsLoss() if multilabel else torch.nn.CrossEntropyLoss()
    torch.testing.assert_close(whole, plain(logits, target), rtol=1e-12, atol=1e-12)


def test_a_metric_must_fit_the_labels():
    assert task_of(multilabel=False, classes=2, metric="roc_auc").metric_name == "roc_auc"
    with pytest.raises(InputError, match="does not fit 5-class data; use one of: accuracy"):
        task_of(multilabel=False, classes=5, metric="roc_auc")


def test_learning_rates_are_functions_of_the_epoch():
    cosine = [learning_rate(TrainConfig(epochs=10, lr=1.0, lr_schedule="cosine"), t) for t in range(10)]
    assert cosine[0] == 1.0
    assert cosine[5] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(cosine))
    step = [learning_rate(TrainConfig(epochs=9, lr=1.0, lr_schedule="step"), t) for t in range(9)]
    assert step == pytest.approx([1.0] * 3 + [0.1] * 3 + [0.01] * 3)
