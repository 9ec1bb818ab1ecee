"""The pipeline placement equals its equations, moves what its formula says, and carries any wire."""

from functools import partial

import pytest
import torch

from fullgraph import nn
from fullgraph.placement import Pipeline
from fullgraph.testing import (
    CASES,
    anew,
    assert_same,
    chunked_trace,
    run_threads,
    train_trace,
    trainer_of,
)
from fullgraph.train.config import TrainConfig

SPECS = {
    "gcn": nn.GCN(layers=5, hidden=9, dropout=0.5, norm="layer", residual=True),
    "sage": nn.GraphSAGE(layers=5, hidden=9, dropout=0.4, linear_layers=1),
    "gin": nn.GIN(layers=5, hidden=8, dropout=0.3),
    "gat": nn.GAT(layers=5, hidden=8, heads=2, dropout=0.5),
}
# ranks, options
MESHES = {
    "1 stage": (1, {"chunks": 5}),
    "2 stages": (2, {"chunks": 6}),
    "3 stages": (3, {"chunks": 7}),
    "2 ways": (2, {"chunks": 4, "ways": 2}),
    "2 ways, 2 stages": (4, {"chunks": 3, "ways": 2}),
}
STEPS = 5


def piped(transport, case, spec, options, steps=STEPS, wire=None, **others):
    """A trace, and how the nodes were cut: the chunk of every id, and the orders of the steps."""
    placement = partial(Pipeline, **options)
    config = TrainConfig(epochs=steps, seed=3, dtype="float64")
    plan = trainer_of(transport, case, spec, config, wire, False, placement=placement).shard.executor
    cut = [(chunk.index, chunk.ids) for chunk in plan.chunks]
    orders = [[chunk.index for chunk in plan.order(step)] for step in range(steps)]
    run = partial(train_trace, narrow_first=False, placement=placement, **others)
    return (
        anew(transport, run, case, spec, steps, wire)
        if transport.size > 1
        else run(transport, case, spec, steps, wire),
        cut,
        orders,
    )


def oracle(ranks, case, spec, outcomes, **options):
    graph, _ = case(ranks)
    chunk_N = torch.full((graph.num_nodes,), -1)
    for _, cut, _ in outcomes:
        for index, ids in cut:
            chunk_N[ids] = index
    assert (chunk_N >= 0).all()
    orders = outcomes[0][2]
    assert all(outcome[2] == orders for outcome in outcomes)
    return chunked_trace(graph, spec, chunk_N, lambda step: orders[step], **options)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", SPECS)
def test_chunks_equal_the_mixed_forward_pass(model, mesh):
    (ranks, options), case, spec = MESHES[mesh], CASES["directed"], SPECS[model]
    for double in (True, False):
        outcomes = run_threads(ranks, piped, case, spec, {**options, "double": double, "freeze": 2})
        assert_same([trace for trace, *_ in outcomes], *oracle(ranks, case, spec, outcomes, double=double, freeze=2))
