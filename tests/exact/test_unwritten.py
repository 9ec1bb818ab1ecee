"""No step reads uninitialised memory: torch fills new tensors with NaN, and nothing changes."""

import pytest
import torch

from fullgraph import nn, recipes
from fullgraph.partition import cut_parts, partition
from fullgraph.run import Run, build_trainer
from fullgraph.testing import run_threads
from fullgraph.train.config import TrainConfig
from tests.support import random_graph

STRATEGIES = {
    "vanilla": recipes.vanilla(),
    "pipegcn": recipes.pipegcn(),
    "sylvie-a": recipes.sylvie_a(),
    "varco": recipes.varco(),
    "mixgcn": recipes.mixgcn(),
    "gnnpipe": recipes.gnnpipe(),
}
MODELS = {"sage": nn.GraphSAGE(layers=3, hidden=8), "gat": nn.GAT(layers=3, hidden=8)}


@pytest.fixture
def filled():
    """A switch: after its call, new memory is NaN."""
    yield lambda: torch.use_deterministic_algorithms(True, warn_only=True)
    torch.use_deterministic_algorithms(False)


def losses(strategy, model):
    graph = random_graph(nodes=200, arcs=1200)
    owner = partition(graph, 2)

    def body(transport):
        part = cut_parts(graph, owner, transport.rank)
        run = Run(model=MODELS[model], strategy=STRATEGIES[strategy], train=TrainConfig(epochs=4))
        trainer = build_trainer(run, part, transport)
        return [float(trainer.train_step()[0]) for _ in range(4)]

    return run_threads(2, body, timeout=60.0)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_read_before_it_is_written(filled, strategy, model):
    before = losses(strategy, model)
    filled()
    assert torch.empty(3).isnan().all()
    assert losses(strategy, model) == before
