"""Deep models learn with many layers."""

from functools import partial

import pytest

from fullgraph import nn
from fullgraph.testing import run_threads
from tests.support import CASES, train_trace


@pytest.mark.parametrize(
    ("kind", "learns"), [(nn.GCNII, True), (nn.ResGCN, True), (nn.GCN, False)], ids=["gcnii", "resgcn", "gcn"]
)
def test_32_layers_learn(kind, learns):
    """A GCN with 32 layers would give all nodes almost the same row."""
    spec, steps = kind(layers=32, hidden=16, dropout=0.0), partial(train_trace, steps=40, lr=0.02)
    losses = run_threads(1, steps, CASES["undirected"], spec)[0]["losses"]
    assert (losses[-1] < 0.6 * losses[0]) == learns
