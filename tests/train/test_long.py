"""Longer trainings: memory does not grow, and models learn."""

import gc
from collections import Counter
from pathlib import Path

import pytest

from fullgraph import nn, recipes
from fullgraph.data import load
from fullgraph.ops import Adjacency
from fullgraph.partition import partition
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.support import CASES, trainer_of

PHOTO = Path(__file__).resolve().parents[3] / "shared" / "data" / "amazon_photo.npz"
EARLY, LATE = 20, 500  # epochs


@pytest.fixture
def no_collector():
    """Objects that only the cyclic garbage collector would free stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def held(transport, strategy):
    """The numbers of live matrices and of the numbers in them, after some epochs and after many."""
    spec = nn.GraphSAGE(layers=2, hidden=8, input_dropout=True)
    config = TrainConfig(epochs=LATE, eval_every=LATE)
    trainer = trainer_of(transport, CASES["wide"], spec, config, strategy=strategy)
    found = []
    for epoch in range(1, LATE + 1):
        trainer.train_step()
        if epoch in (EARLY, LATE):
            matrices = [thing for thing in gc.get_objects() if isinstance(thing, Adjacency)]
            found.append(Counter(matrix.structure.num_arcs for matrix in matrices))
    return found


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("strategy", [recipes.vanilla(), recipes.pipegcn()], ids=str)
def test_dropped_sparse_features_do_not_pile_up(strategy):
    """Each step drops other features in a new matrix, whose transpose the backward pass reads."""
    ((early, late),) = run_threads(1, held, strategy)
    assert late.total() <= early.total(), f"{early} became {late}"


def best(transport, graph, spec):
    config = TrainConfig(epochs=60, eval_every=5)
    trainer = trainer_of(transport, lambda ranks: (graph, partition(graph, ranks)), spec, config)
    trainer.fit([])
    return max(record.val for record in trainer.records if record.val is not None)


@pytest.mark.skipif(not PHOTO.exists(), reason="the shared graphs are not beside this checkout")
def test_gin_learns_where_sums_are_large():
    """Word counts of thirty neighbours, through three layers: without its own norm the model stays at chance, 0.26."""
    spec = nn.GIN(layers=3, hidden=32, norm="none")
    assert run_threads(1, best, load(str(PHOTO)), spec)[0] > 0.5
